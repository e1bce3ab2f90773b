"""What a torch that is built with CUDA has and this one has not: functions of torch._C, and classes of torch.cuda.

torch.cuda's own Python code stays as it is, and calls these functions. Most have a twin that torch has for each kind of
device (torch._C._accelerator_*), which asks the device of `device.cpp`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

MEMORY_BYTES = 80 << 30
"""The memory in bytes that each virtual GPU has; tensors lie in the memory of the host."""

NAME = "ddpsim virtual GPU"
CUDA_VERSION = "12.8"

_CUDA_DEVICE_TYPE = 1
_SHORTEST_MILLISECONDS = 0.001
"""The shortest time between two events that is reported: a program may divide by it."""


class Event(torch.Event):
    """Replaces torch.cuda.Event. Queued work is always done, so no method waits."""

    _recorded_at: float | None = None
    _is_timed = False

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Event:
        """Make an event. Raises NotImplementedError for one that other processes can use."""
        if interprocess:
            raise NotImplementedError("virtual GPUs have no events for other processes: leave out interprocess=True")
        made: Event = super().__new__(cls, "cuda", enable_timing=enable_timing)
        made._is_timed = enable_timing
        return made

    def record(self, stream: Any = None) -> None:
        """Record the current time of the rank's (virtual) clock."""
        self._recorded_at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing."""

    synchronize = wait

    def query(self) -> bool:
        """Return True."""
        return True

    def elapsed_time(self, end_event: Event) -> float:  # type: ignore[override]
        """Return the milliseconds between two recorded events, always more than 0."""
        if not (self._is_timed and end_event._is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_at is None or end_event._recorded_at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return max((end_event._recorded_at - self._recorded_at) * 1000, _SHORTEST_MILLISECONDS)


class Stream(torch.Stream):
    """Replaces torch.cuda.Stream. Queued work is always done, so no method waits."""

    cuda_stream = 0

    def __new__(cls, device: Any = None, priority: int = 0, **options: Any) -> Stream:
        """Make a stream of a device; `options` are the numbers of a stream that there is."""
        if "stream_id" in options:
            made: Stream = super().__new__(cls, **options)
        else:
            index = torch.cuda._utils._get_device_index(device, optional=True)
            made = super().__new__(cls, torch.device("cuda", index), priority=priority)
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return 0, -1

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def record_event(self, event: Any = None) -> Event:
        """Record the time in an event."""
        event = Event() if event is None else event
        event.record(self)
        return event  # type: ignore[no-any-return]


class DeviceProperties(NamedTuple):
    """The result of torch.cuda.get_device_properties."""

    name: str = NAME
    major: int = 9
    minor: int = 0
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


class _Cudart(SimpleNamespace):
    """Replaces the module of the CUDA runtime that torch.cuda.cudart() returns."""

    def __init__(self) -> None:
        names = ("HostRegister", "HostUnregister", "ProfilerStart", "ProfilerStop", "StreamCreate")
        super().__init__(
            cudaError=SimpleNamespace(success=0),
            cudaMemGetInfo=torch._C._accelerator_getMemoryInfo,
            **{f"cuda{name}": lambda *arguments: 0 for name in names},
        )


def visible_count(gpus: int, visible: str | None) -> int:
    """Return how many GPUs of a machine with `gpus` a process sees, by its CUDA_VISIBLE_DEVICES (None: all).

    The list ends at the first number that no GPU has, as CUDA reads it.
    """
    if visible is None:
        return gpus
    numbers = [each.strip() for each in visible.split(",")]
    return next((n for n, each in enumerate(numbers) if not (each.isdigit() and int(each) < gpus)), len(numbers))


def cuda_functions(gpus: int) -> dict[str, Any]:
    """Return the functions of a torch._C with CUDA, on a machine with so many virtual GPUs."""
    native, all_devices = torch._C, torch.ops.ddpsim_gpu

    def nothing(value: Any = None) -> Callable[..., Any]:
        return lambda *arguments, **options: value

    def initialized(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that first initializes CUDA, as torch's C++ code does."""

        def call(*arguments: Any) -> Any:
            torch.cuda._lazy_init()
            return function(*arguments)

        return call

    def count_visible() -> int:
        return visible_count(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def initialize() -> None:
        count = count_visible()
        all_devices.install(count, MEMORY_BYTES)
        all_devices.note_use()
        torch.cuda.default_generators = tuple(all_devices.default_generator(index) for index in range(count))

    def stream_numbers(device: int) -> tuple[int, int, int]:
        return native._accelerator_getStream(device).stream_id, device, _CUDA_DEVICE_TYPE

    def set_stream(**numbers: int) -> None:
        native._accelerator_setStream(torch.Stream(**numbers))

    return {
        "_has_cuda": True,
        "_cuda_init": initialize,
        "_cuda_getDeviceCount": count_visible,
        "_cuda_isInBadFork": all_devices.is_in_bad_fork,
        "_cuda_setDevice": initialized(native._accelerator_setDeviceIndex),
        "_cuda_getDevice": initialized(native._accelerator_getDeviceIndex),
        "_cuda_exchangeDevice": initialized(native._accelerator_exchangeDevice),
        "_cuda_maybeExchangeDevice": initialized(native._accelerator_maybeExchangeDevice),
        "_cuda_canDeviceAccessPeer": nothing(True),
        "_cuda_synchronize": nothing(),
        "_cuda_getCurrentStream": stream_numbers,
        "_cuda_getDefaultStream": lambda device: (0, device, _CUDA_DEVICE_TYPE),
        "_cuda_getCurrentRawStream": nothing(0),
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": nothing(False),
        "_cuda_memoryStats": native._accelerator_getDeviceStats,
        "_cuda_resetPeakMemoryStats": native._accelerator_resetPeakStats,
        "_cuda_resetAccumulatedMemoryStats": native._accelerator_resetAccumulatedStats,
        "_cuda_emptyCache": nothing(),
        "_cuda_setMemoryFraction": nothing(),
        "_cuda_getMemoryFraction": nothing(1.0),
        "_cuda_memorySnapshot": lambda *arguments: {"segments": [], "device_traces": []},
        "_cuda_record_memory_history": nothing(),
        "_cuda_record_memory_history_legacy": nothing(),
        "_cuda_ipc_collect": nothing(),
        "_cuda_sleep": nothing(),
        "_cuda_getArchFlags": nothing("sm_90"),
        "_cuda_getCompiledVersion": nothing(12080),
        "_cuda_set_sync_debug_mode": nothing(),
        "_cuda_get_sync_debug_mode": nothing(0),
    }


def data_parallel_functions() -> dict[str, Any]:
    """Return the functions of a torch._C with CUDA that torch.nn.DataParallel calls (torch/nn/parallel/comm.py)."""

    def copies(tensors: Iterable[torch.Tensor], device: int | None) -> list[torch.Tensor]:
        target = "cpu" if device == -1 else "cuda" if device is None else f"cuda:{device}"
        return [tensor.to(target) for tensor in tensors]

    def scatter(tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any) -> list[torch.Tensor]:
        parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
        return [part for each, device in zip(parts, devices, strict=False) for part in copies([each], device)]

    def reduce(inputs: Sequence[torch.Tensor], output: torch.Tensor, *options: Any) -> None:
        output.copy_(torch.stack(copies(inputs, output.device.index)).sum(0))

    return {
        "_broadcast": lambda tensor, devices: [copies([tensor], device)[0] for device in devices],
        "_broadcast_coalesced": lambda tensors, devices, size: [copies(tensors, device) for device in devices],
        "_scatter": scatter,
        "_gather": lambda tensors, dim, device: torch.cat(copies(tensors, device), dim),
        "_nccl_reduce": reduce,
    }


def cuda_module() -> dict[str, Any]:
    """Return what torch.cuda itself has instead of its own."""

    def device_properties(device: int) -> DeviceProperties:
        if not 0 <= device < torch.cuda.device_count():
            raise AssertionError("Invalid device id")
        return DeviceProperties()

    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "_cudart": _Cudart(),
        "_exchange_device": _unless_negative(torch._C._accelerator_exchangeDevice),
        "_maybe_exchange_device": _unless_negative(torch._C._accelerator_maybeExchangeDevice),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_device_count_nvml": lambda: -1,  # a machine with GPUs has virtual ones by --gpus
        "_get_device_properties": device_properties,
        "_is_in_bad_fork": torch.ops.ddpsim_gpu.is_in_bad_fork,
        "utilization": lambda device=None: 0,
    }


def _unless_negative(function: Callable[[int], int]) -> Callable[[int], int]:
    return lambda device: -1 if device < 0 else function(device)
