"""Virtual GPUs for the process of a rank: given by `--gpus`, or put there when a program asks for a GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ddpsim.simulator.patches.not_simulated import NCCL_TIMEOUT, NCCL_VERSION
from ddpsim.simulator.process_group.without_modes import see_tensors_as_they_are
from ddpsim.simulator.runtime.replaced import Replaced
from ddpsim.simulator.virtual_gpus.announcement import Announcement
from ddpsim.simulator.virtual_gpus.around_backward import keep_mode_in_backward
from ddpsim.simulator.virtual_gpus.around_libraries import replace_when_imported
from ddpsim.simulator.virtual_gpus.around_tensors import (
    replace_autocast,
    replace_compile,
    replace_generator,
    replace_load,
    replace_moves,
    replace_profiler,
)
from ddpsim.simulator.virtual_gpus.cuda_module import accelerator_functions, cuda_functions
from ddpsim.simulator.virtual_gpus.gpus import Gpus
from ddpsim.simulator.virtual_gpus.mode import VirtualGpuMode
from ddpsim.simulator.virtual_gpus.refusals import REFUSED, NoNccl, refusing

_CUDA_VERSION = "12.8"


class VirtualGpus:
    """The virtual GPUs of a rank, once they are installed."""

    def __init__(self, announcement: Announcement) -> None:
        self._announcement = announcement
        self._mode: Any = None
        """Once there are some."""

    def install(self, count: int) -> None:
        """Give the program of this process GPUs."""
        gpus = Gpus(count)
        replace_moves(gpus)
        replace_generator()
        replace_load(gpus)
        replace_autocast()
        replace_profiler()
        replace_compile(self._announcement.say_not_compiled)
        replaced = cuda_functions(gpus) | {name: refusing(f"torch.cuda.{name}", do) for name, do in REFUSED.items()}
        for module in _modules("torch.cuda"):
            _replace(module, replaced, adds=module is torch.cuda)
        for module in _modules("torch.accelerator"):
            _replace(module, accelerator_functions(gpus), adds=module is torch.accelerator)
        for name in ("FloatTensor", "HalfTensor", "DoubleTensor", "LongTensor", "IntTensor", "BoolTensor"):
            Replaced().put(torch.cuda, name, _on_current(getattr(torch, name)))
        _replace_libraries()
        replace_when_imported(gpus)
        see_tensors_as_they_are()
        self._mode = VirtualGpuMode(gpus)
        keep_mode_in_backward(self._mode)
        self.enter_thread()

    def enter_thread(self) -> None:
        """The running thread works with them, too."""
        if self._mode is not None:
            self._mode.__enter__()


def _replace_libraries() -> None:
    replaced = Replaced()
    replaced.put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    replaced.put(dist, "is_nccl_available", lambda: True)
    replaced.put(dist, "ProcessGroupNCCL", NoNccl)
    replaced.put(dist.distributed_c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT)
    replaced.put(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    replaced.put(torch.cuda.nccl, "is_available", lambda tensors: True)
    replaced.put(torch.version, "cuda", torch.version.cuda or _CUDA_VERSION)


def _modules(name: str) -> list[ModuleType]:
    """A module, and those inside it that have been imported, where functions stand under the same names."""
    return [module for key, module in list(sys.modules.items()) if key == name or key.startswith(f"{name}.")]


def _replace(module: ModuleType, replaced: dict[str, Any], *, adds: bool) -> None:
    for name, value in replaced.items():
        if adds or name in vars(module):
            Replaced().put(module, name, value)


def _on_current(kind: Any) -> Any:
    """An old name for a tensor of a dtype on a GPU."""
    return lambda *arguments: kind(*arguments).cuda()
