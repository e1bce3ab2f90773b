"""What stands in torch.cuda for a program with virtual GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.virtual_gpus.gpus import Gpus
from ddpsim.simulator.virtual_gpus.streams import Event, Stream, StreamContext

MEMORY_BYTES = 80 << 30
"""What each is said to have; the program's tensors lie in the memory of the CPU, and nobody counts them."""

NAME = "ddpsim virtual GPU"
CAPABILITY = (9, 0)


class Properties(NamedTuple):
    """As torch.cuda.get_device_properties has them."""

    name: str = NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = MEMORY_BYTES
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    L2_cache_size: int = 50 << 20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""
    uuid: str = "00000000-0000-0000-0000-000000000000"


def cuda_functions(gpus: Gpus) -> dict[str, Any]:
    """Functions and classes by their names in torch.cuda."""
    return {
        **_devices(gpus),
        **_streams(),
        **_memory(gpus),
        **_random(gpus),
    }


def accelerator_functions(gpus: Gpus) -> dict[str, Any]:
    """Functions by their names in torch.accelerator, which are those of torch.cuda under other names."""
    devices, memory = _devices(gpus), _memory(gpus)
    return {
        "is_available": lambda: True,
        "device_count": lambda: gpus.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: gpus.current,
        "current_device_idx": lambda: gpus.current,
        "set_device_index": devices["set_device"],
        "set_device_idx": devices["set_device"],
        "device_index": devices["device"],
        "get_device_capability": devices["get_device_capability"],
        "synchronize": _answer(None),
        "current_stream": _answer(Stream()),
        "set_stream": _answer(None),
        **{name: each for name, each in memory.items() if name != "mem_get_info"},
        "get_memory_info": memory["mem_get_info"],
    }


def _answer(value: Any) -> Callable[..., Any]:
    """A function of its own for each name: torch's compiler has a rule for each, and refuses one that has two."""
    return lambda *arguments, **options: value


def _devices(gpus: Gpus) -> dict[str, Any]:
    def set_device(device: Any) -> None:
        gpus.current = gpus.index_of(device)

    def properties(device: Any = None) -> Properties:
        gpus.index_of(device)
        return Properties()

    class device:  # a class in torch, too
        """Stands for torch.cuda.device."""

        def __init__(self, device: Any) -> None:
            self.idx = gpus.index_of(device)

        def __enter__(self) -> None:
            self.prev_idx, gpus.current = gpus.current, self.idx

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            gpus.current = self.prev_idx

    class device_of(device):
        """Stands for torch.cuda.device_of."""

        def __init__(self, obj: Any) -> None:
            super().__init__(obj.get_device() if obj.is_cuda else None)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _answer(None),
        "_lazy_init": _answer(None),
        "_lazy_call": lambda call, **options: call(),
        "device_count": lambda: gpus.count,
        "current_device": lambda: gpus.current,
        "set_device": set_device,
        "device": device,
        "device_of": device_of,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: CAPABILITY if properties(device) else None,
        "can_device_access_peer": lambda device, peer_device: True,
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "synchronize": _answer(None),
        "ipc_collect": _answer(None),
        "utilization": _answer(0),
        "is_current_stream_capturing": lambda: False,
        "_sleep": _answer(None),
    }


def _streams() -> dict[str, Any]:
    only = Stream()
    return {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "ExternalStream": Stream,
        "stream": StreamContext,
        "current_stream": _answer(only),
        "default_stream": _answer(only),
        "set_stream": _answer(None),
    }


def _memory(gpus: Gpus) -> dict[str, Any]:
    nothing_counted = ("memory_allocated", "memory_reserved", "memory_cached")
    numbers = [*nothing_counted, *(f"max_{name}" for name in nothing_counted)]
    resets = (
        "empty_cache",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
        "set_per_process_memory_fraction",
        "_record_memory_history",
        "_dump_snapshot",
    )
    return {
        **{name: _answer(0) for name in numbers},
        **{name: _answer(None) for name in resets},
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_summary": lambda device=None, abbreviated=False: f"{NAME}: memory is the CPU's, and nobody counts it\n",
        "memory_snapshot": lambda *arguments: [],
        "mem_get_info": lambda device=None: (MEMORY_BYTES, MEMORY_BYTES),
        "list_gpu_processes": lambda device=None: f"{NAME}: no processes are found",
    }


def _random(gpus: Gpus) -> dict[str, Any]:
    """A virtual GPU draws from the generator of the CPU."""
    generator = torch.default_generator

    def manual_seed(seed: int) -> None:
        gpus.times_seeded += 1
        generator.manual_seed(int(seed))

    def set_states(states: Sequence[Tensor]) -> None:
        generator.set_state(states[gpus.current])

    def seed() -> None:
        gpus.times_seeded += 1
        generator.seed()

    return {
        "manual_seed": lambda seed: manual_seed(seed),
        "manual_seed_all": manual_seed,
        "seed": lambda: seed(),
        "seed_all": seed,
        "initial_seed": lambda: generator.initial_seed(),
        "get_rng_state": lambda device=None: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state() for _ in range(gpus.count)],
        "set_rng_state": lambda new_state, device=None: generator.set_state(new_state),
        "set_rng_state_all": set_states,
        "_is_in_bad_fork": lambda: False,
    }
