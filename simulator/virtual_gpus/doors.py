"""Detects that a program asks for a GPU, and then installs virtual GPUs; only without --gpus and without a real GPU.

torch asks torch.cuda._lazy_init before it does anything on a GPU, from Python and from C++, but for set_device. A
program that only checks for GPUs gets the answer that there are none.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus.install import VirtualGpus


class GpuRequestProbes:
    """Replaces functions that ask for a GPU, until a program calls one of them."""

    def __init__(self, gpus: VirtualGpus, count: int, on_request: Callable[[str], None]) -> None:
        self._gpus = gpus
        self._count = count
        self._on_request = on_request
        """A function that is called with a description of a request for a GPU."""
        self._replaced = ReplacedAttributes()

    def install_probes(self) -> None:
        """Start to detect requests for a GPU."""
        self._replace_by_probe(torch.cuda, "_lazy_init", torch.cuda._lazy_init)
        self._replace_by_probe(torch._C, "_cuda_setDevice", getattr(torch._C, "_cuda_setDevice", None))
        makers: tuple[Any, ...] = (dist, distributed_c10d)
        for owner in makers:
            self._replace_by_probe(owner, "init_process_group", owner.init_process_group, _names_nccl)

    def _replace_by_probe(
        self,
        owner: Any,
        name: str,
        original: Any,
        asks: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda arguments, options: True,
    ) -> None:
        """Replace a function: a call for which `asks` returns true installs virtual GPUs, then calls the function."""

        @functools.wraps(original)
        def check_request(*arguments: Any, **options: Any) -> Any:
            caller = sys._getframe(1)
            if not asks(arguments, options) or _is_compiler_frame(caller):
                return original(*arguments, **options)
            self._replaced.restore_attributes()
            # False after the installation: a program may have imported a replaced function by name.
            if not torch.cuda.is_available():
                self._on_request("backend 'nccl'" if name == "init_process_group" else _request_text(caller))
                self._gpus.install(self._count)
            return getattr(owner, name)(*arguments, **options)

        self._replaced.set_attribute(owner, name, check_request)


def _request_text(caller: FrameType) -> str:
    """Return the function of torch.cuda that a program called; else the program has named a device."""
    name = str(caller.f_globals.get("__name__"))
    return f"torch.cuda.{caller.f_code.co_name}" if name.startswith("torch.cuda") else "device 'cuda'"


def _is_compiler_frame(frame: FrameType) -> bool:
    """Return whether a frame belongs to torch's compiler, which lists all devices whatever the program does."""
    return str(frame.f_globals.get("__name__")).startswith(("torch._dynamo", "torch._inductor"))


def _names_nccl(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    backend = arguments[0] if arguments else options.get("backend")
    return "nccl" in str(backend).lower() or str(options.get("device_id")).startswith("cuda")
