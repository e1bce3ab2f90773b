"""The functions and classes that replace those of torch.cuda in a program with virtual GPUs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.virtual_gpus.gpus import VirtualDevices

MEMORY_BYTES = 80 << 30
"""The memory in bytes that each virtual GPU reports; tensors use the memory of the CPU, and are not counted."""

NAME = "ddpsim virtual GPU"
CAPABILITY = (9, 0)

_SHORTEST_MILLISECONDS = 0.001
"""The shortest time between two events that is reported: a program may divide by it."""


class Event:
    """Replaces torch.cuda.Event. Queued work is always done, so no method waits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._recorded_at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Record the current time of the rank's (virtual) clock."""
        self._recorded_at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing."""

    synchronize = wait

    def query(self) -> bool:
        """Return True."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds between two recorded events, always more than 0."""
        if self._recorded_at is None or end_event._recorded_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return max((end_event._recorded_at - self._recorded_at) * 1000, _SHORTEST_MILLISECONDS)


class Stream:
    """Replaces torch.cuda.Stream. Queued work is always done, so no method waits."""

    stream_id = 0
    cuda_stream = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device = torch.device("cuda") if device is None else device
        self.priority = priority

    def synchronize(self, other: Any = None) -> None:
        """Do nothing."""

    wait_stream = wait_event = synchronize

    def is_capturing(self) -> bool:
        """Return False: virtual GPUs have no graphs."""
        return False

    def query(self) -> bool:
        """Return True."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Record the time in an event."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class StreamContext(nullcontext[None]):
    """Replaces the context manager that torch.cuda.stream returns."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream


class DeviceProperties(NamedTuple):
    """The result of torch.cuda.get_device_properties."""

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


def cuda_functions(gpus: VirtualDevices) -> dict[str, Any]:
    """Return functions and classes by their names in torch.cuda."""
    return {**_device_functions(gpus), **_stream_functions(), **_memory_functions(), **_random_functions(gpus)}


def accelerator_functions(gpus: VirtualDevices) -> dict[str, Any]:
    """Return the functions of torch.accelerator by name: they are functions of torch.cuda under other names."""
    devices, memory = _device_functions(gpus), _memory_functions()
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
        "synchronize": _constant_function(None),
        "current_stream": _constant_function(Stream()),
        "set_stream": _constant_function(None),
        **{name: each for name, each in memory.items() if name != "mem_get_info"},
        "get_memory_info": memory["mem_get_info"],
    }


def _constant_function(value: Any) -> Callable[..., Any]:
    """Return a new function that returns `value`. Each name gets its own, as torch's compiler has one rule per
    function."""
    return lambda *arguments, **options: value


def _device_functions(gpus: VirtualDevices) -> dict[str, Any]:
    def set_device(device: Any) -> None:
        gpus.current = gpus.index_of(device)

    def properties(device: Any = None) -> DeviceProperties:
        gpus.index_of(device)
        return DeviceProperties()

    class device:  # a class in torch, too
        """Replaces torch.cuda.device."""

        def __init__(self, device: Any) -> None:
            self.idx = gpus.index_of(device)

        def __enter__(self) -> None:
            self.prev_idx, gpus.current = gpus.current, self.idx

        def __exit__(self, *error: object) -> None:
            gpus.current = self.prev_idx

    class device_of(device):
        """Replaces torch.cuda.device_of."""

        def __init__(self, obj: Any) -> None:
            super().__init__(obj.get_device() if obj.is_cuda else None)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: gpus.is_used,
        "init": _constant_function(None),
        "_lazy_init": _constant_function(None),
        "_lazy_call": lambda call, **options: call(),
        "device_count": lambda: gpus.count,
        "current_device": lambda: gpus.index_of(),
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
        "synchronize": _constant_function(None),
        "ipc_collect": _constant_function(None),
        "utilization": _constant_function(0),
        "is_current_stream_capturing": lambda: False,
        "_sleep": _constant_function(None),
    }


def _stream_functions() -> dict[str, Any]:
    only = Stream()
    return {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "ExternalStream": Stream,
        "stream": StreamContext,
        "current_stream": _constant_function(only),
        "default_stream": _constant_function(only),
        "set_stream": _constant_function(None),
    }


def _memory_functions() -> dict[str, Any]:
    """Return the functions of torch.cuda on memory, which report that nothing is used."""
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
        **{name: _constant_function(0) for name in numbers},
        **{name: _constant_function(None) for name in resets},
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_summary": lambda device=None, abbreviated=False: f"{NAME}: memory is the CPU's and is not counted\n",
        "memory_snapshot": lambda *arguments: [],
        "mem_get_info": lambda device=None: (MEMORY_BYTES, MEMORY_BYTES),
        "list_gpu_processes": lambda device=None: f"{NAME}: no processes are found",
    }


def _random_functions(gpus: VirtualDevices) -> dict[str, Any]:
    """Return the functions of torch.cuda on random numbers: virtual GPUs draw from the CPU's generator."""
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
