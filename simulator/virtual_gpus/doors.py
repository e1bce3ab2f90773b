"""Detects that a program asks for a GPU, and then installs virtual GPUs; only without --gpus and on a machine without a
GPU.

A program that only checks for GPUs gets the answer that there are none.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.utils._device as default_device
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus.install import VirtualGpus

_USES = (
    "current_device",
    "current_stream",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "mem_get_info",
    "set_device",
    "synchronize",
)
"""Functions of torch.cuda that fail where there is no GPU."""


class GpuRequestProbes:
    """Replaces functions that ask for a GPU, until a program calls one of them."""

    def __init__(self, gpus: VirtualGpus, count: int, put_there: Callable[[str], None]) -> None:
        self._gpus = gpus
        self._count = count
        self._on_request = put_there
        """A function that is called with a description of a request for a GPU."""
        self._replaced = ReplacedAttributes()

    def install_probes(self) -> None:
        """Start to detect requests for a GPU."""
        for name in _USES:
            self._replace_by_probe(torch.cuda, name, f"torch.cuda.{name}")
        movers: tuple[Any, ...] = (Tensor, nn.Module)
        for owner in movers:
            self._replace_by_probe(owner, "cuda", ".cuda()")
            self._replace_by_probe(owner, "to", "device 'cuda'", _names_cuda)
        self._replace_by_probe(default_device.DeviceContext, "__init__", "device 'cuda'", _names_cuda)
        self._replace_by_probe(torch.cuda, "_lazy_init", "", instead=self._reject_native_request)
        makers: tuple[Any, ...] = (dist, distributed_c10d)
        for owner in makers:
            self._replace_by_probe(owner, "init_process_group", "backend 'nccl'", _names_nccl)

    def _replace_by_probe(
        self,
        owner: Any,
        name: str,
        what: str,
        asks: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda arguments, options: True,
        instead: Callable[..., Any] | None = None,
    ) -> None:
        """Replace a function: a call for which `asks` returns true installs virtual GPUs, then calls the original."""

        def wrap_request(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def check_request(*arguments: Any, **options: Any) -> Any:
                caller = str(sys._getframe(1).f_globals.get("__name__"))
                # torch's compiler lists all devices whatever the program does
                if caller.startswith(("torch._dynamo", "torch._inductor")) or not asks(arguments, options):
                    return original(*arguments, **options)
                # True after the installation, too: a program may have imported a replaced function by name.
                has_gpu = torch.cuda.is_available()
                if not has_gpu and instead is not None:
                    instead()
                self._replaced.restore_attributes()
                if not has_gpu:
                    self._gpus.install(self._count)
                    self._on_request(what)
                return getattr(owner, name)(*arguments, **options)

            return check_request

        self._replaced.replace_attribute(owner, name, wrap_request)

    def _reject_native_request(self) -> NoReturn:
        """Raise an error: native code of torch has asked for a GPU, and cannot be called again with virtual GPUs."""
        raise RuntimeError(
            f"the program makes a tensor on 'cuda', and this machine has no GPU: run it with --gpus {self._count} for "
            "virtual ones, or call torch.cuda.set_device first"
        )


def _is_cuda_device(value: Any) -> bool:
    return str(value).startswith("cuda") if isinstance(value, (str, torch.device)) else False


def _names_cuda(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return any(_is_cuda_device(value) for value in arguments[1:2]) or _is_cuda_device(options.get("device"))


def _names_nccl(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    backend = arguments[0] if arguments else options.get("backend")
    return "nccl" in str(backend).lower() or _is_cuda_device(options.get("device_id"))
