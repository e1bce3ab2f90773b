"""torch's tests for GPUs, on CPU: guards are lifted, and cuda means CPU.

It is no model of a GPU, only a way to have these programs run at all; so only what passes on real gloo with the same
port says anything about a simulation. It stands before the virtual GPUs that a simulation would give these programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed, common_utils

OF_ALL_GPUS = ("skip_if_no_gpu", "skip_if_rocm_multiprocess")
WITH_ARGUMENTS = (
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_nccl_version",
    "skip_if_lt_x_gpu",
)
TENSOR_TO = Tensor.to
MODULE_TO = nn.Module.to


def lift_guards() -> None:
    """Let a module that is imported after this run all its tests."""
    for name in OF_ALL_GPUS:
        setattr(common_distributed, name, _as_it_is)
    for name in WITH_ARGUMENTS:
        setattr(common_distributed, name, _lifted)
    common_utils.skip_but_pass_in_sandcastle_if = _lifted


def put_gpus_on_cpu(module: ModuleType, world_size: int) -> None:
    """Give the tests of `module` in this process a GPU for each rank that is the CPU. It may be called again."""
    owners: list[tuple[Any, dict[str, Any]]] = [
        # Each a function of its own: torch's compiler has a rule for each name.
        (torch.cuda, {name: partial(_nothing) for name in ("set_device", "synchronize", "empty_cache")}),
        (torch.cuda, dict.fromkeys(("device", "stream"), nullcontext)),
        (torch.cuda, dict.fromkeys(("current_stream", "Stream", "Event"), _Stream)),
        (torch.cuda, {"device_count": lambda: world_size, "current_device": lambda: 0}),
        (Tensor, {"cuda": lambda tensor, *_, **__: tensor.clone(), "to": TENSOR_TO}),
        (nn.Module, {"cuda": lambda model, *_: model, "to": _moved}),
        (nn.parallel, {"DistributedDataParallel": DistributedDataParallel}),
        (module, {"DistributedDataParallel": DistributedDataParallel}),
        (module, {"init_multigpu_helper": lambda *_: {rank: [rank] for rank in range(world_size)}}),
    ]
    for owner, replaced in owners:
        for name, value in replaced.items():
            setattr(owner, name, value)


class CudaIsCpu(TorchFunctionMode):
    """Under it, a device of cuda among the arguments of a function of torch is the CPU, and so is a GPU's number."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function with other devices."""
        if function is torch.device:  # to name one asks for nothing yet
            return function(*args, **(kwargs or {}))
        named = {name: _device(value) if name == "device" else _on_cpu(value) for name, value in (kwargs or {}).items()}
        if function is TENSOR_TO:
            return function(args[0], *map(_device, args[1:]), **named)
        return function(*map(_on_cpu, args), **named)


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """torch's, for models on CPU: it takes no devices."""

    def __init__(self, *args: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class _Stream:
    """Work of a CPU is done when it is asked for, so there is nothing to wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.synchronize = self.wait_stream = self.record = self.wait_event = self.record_event = self.wait = _nothing


def _moved(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """What Module.to returns."""
    named = {name: _device(value) for name, value in kwargs.items()}
    moved: nn.Module = MODULE_TO(model, *map(_device, args), **named)
    return moved


def _on_cpu(value: Any) -> Any:
    is_cuda = (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.partition(":")[0] == "cuda"
    )
    return torch.device("cpu") if is_cuda else value


def _device(value: Any) -> Any:
    """The same where a number is a GPU's."""
    return torch.device("cpu") if isinstance(value, int) and not isinstance(value, bool) else _on_cpu(value)


def _as_it_is(value: Any) -> Any:
    return value


def _lifted(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return _as_it_is


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
