"""Installs virtual GPUs in the process of a rank: because of `--gpus`, or when a program asks for a GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ddpsim.simulator.patches.not_simulated import NCCL_TIMEOUT, NCCL_VERSION
from ddpsim.simulator.process_group.without_modes import hide_gpu_labels_from_calls
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus import around_tensors
from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement
from ddpsim.simulator.virtual_gpus.around_backward import keep_mode_in_backward
from ddpsim.simulator.virtual_gpus.around_libraries import replace_when_imported
from ddpsim.simulator.virtual_gpus.cuda_module import accelerator_functions, cuda_functions
from ddpsim.simulator.virtual_gpus.gpus import VirtualDevices
from ddpsim.simulator.virtual_gpus.mode import VirtualGpuMode

_CUDA_VERSION = "12.8"

_NCCL_OPTIONS = "leave pg_options out where torch.cuda.get_device_name() is 'ddpsim virtual GPU'"
_GRAPHS = "run without CUDA graphs where there is no GPU"

_UNSUPPORTED = {
    "CUDAGraph": _GRAPHS,
    "graph": _GRAPHS,
    "make_graphed_callables": _GRAPHS,
    "CUDAPluggableAllocator": "leave the allocator as it is",
    "MemPool": "leave the allocator as it is",
}
"""Names in torch.cuda that virtual GPUs do not support, each with the advice in its error message."""


def _make_unsupported_class(name: str, remedy: str) -> type:
    """Return a class that raises when it is called: a class, because programs use such names in annotations."""

    def raise_unsupported(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"virtual GPUs have no {name}: {remedy}")

    return type(name.rpartition(".")[2], (), {"__new__": raise_unsupported})


class UnsupportedNccl:
    """Replaces torch.distributed.ProcessGroupNCCL."""

    Options = _make_unsupported_class("ProcessGroupNCCL.Options", _NCCL_OPTIONS)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _make_unsupported_class("ProcessGroupNCCL", "make groups by init_process_group and new_group")()


class VirtualGpus:
    """The virtual GPUs of a rank, which has none until they are installed."""

    def __init__(self, announcement: FirstUseAnnouncement) -> None:
        self._announcement = announcement
        self._mode: Any = None
        """The mode of torch that simulates the GPUs; None until the GPUs are installed."""

    def install(self, count: int) -> None:
        """Give the program of this process `count` virtual GPUs."""
        gpus = VirtualDevices(count)
        around_tensors.replace_moves(gpus)
        around_tensors.replace_generator()
        around_tensors.replace_load(gpus)
        around_tensors.replace_autocast()
        around_tensors.replace_profiler()
        around_tensors.replace_compile(self._announcement.announce_no_compilation)
        unsupported = {name: _make_unsupported_class(f"torch.cuda.{name}", do) for name, do in _UNSUPPORTED.items()}
        replaced = cuda_functions(gpus) | unsupported
        for module in _imported_modules("torch.cuda"):
            _replace_functions(module, replaced, adds=module is torch.cuda)
        for module in _imported_modules("torch.accelerator"):
            _replace_functions(module, accelerator_functions(gpus), adds=module is torch.accelerator)
        for name in ("FloatTensor", "HalfTensor", "DoubleTensor", "LongTensor", "IntTensor", "BoolTensor"):
            ReplacedAttributes().set_attribute(torch.cuda, name, _cuda_constructor(getattr(torch, name)))
        _replace_libraries()
        replace_when_imported(gpus)
        hide_gpu_labels_from_calls()
        self._mode = VirtualGpuMode(gpus)
        keep_mode_in_backward(self._mode)
        self.enter_thread()

    def enter_thread(self) -> None:
        """Activate the virtual GPUs in the running thread of the rank, too."""
        if self._mode is not None:
            self._mode.__enter__()


def _replace_libraries() -> None:
    replaced = ReplacedAttributes()
    replaced.set_attribute(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    replaced.set_attribute(dist, "is_nccl_available", lambda: True)
    replaced.set_attribute(dist, "ProcessGroupNCCL", UnsupportedNccl)
    replaced.set_attribute(dist.distributed_c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT)
    replaced.set_attribute(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    replaced.set_attribute(torch.cuda.nccl, "is_available", lambda tensors: True)
    replaced.set_attribute(torch.version, "cuda", torch.version.cuda or _CUDA_VERSION)


def _imported_modules(name: str) -> list[ModuleType]:
    """Return a module and its imported submodules, which contain functions under the same names."""
    return [module for key, module in list(sys.modules.items()) if key == name or key.startswith(f"{name}.")]


def _replace_functions(module: ModuleType, replaced: dict[str, Any], *, adds: bool) -> None:
    for name, value in replaced.items():
        if adds or name in vars(module):
            ReplacedAttributes().set_attribute(module, name, value)


def _cuda_constructor(kind: Any) -> Any:
    """Return the replacement of an old constructor of GPU tensors, such as torch.cuda.FloatTensor."""
    return lambda *arguments: kind(*arguments).cuda()
