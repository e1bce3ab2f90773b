"""The tensors of one replica that are compared with other ranks: parameters, buffers and optimizer state, by name."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.attribution.wrapper import Wrapper
from ddpsim.simulator.verdict import Code


class Named(NamedTuple):
    """One tensor of a replica."""

    name: str
    tensor: Tensor
    code: Code
    is_optional: bool = False
    """Other ranks need not have it: an optimizer's state, if sharded, or what the optimizer does not change."""
    is_state: bool = False

    def __reduce__(self) -> tuple[type[Named], tuple[Any, ...]]:
        """Pickle the tensor without its graph, and without the rest of the storage that it is a part of."""
        return Named, (self.name, self.tensor.detach().cpu().clone(), *self[2:])


def parameters_of(optimizer: Any) -> set[int]:
    """The ids of the parameters that an optimizer changes."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def parameters_in(wrapper: Wrapper) -> list[Named]:
    """All parameters, in the module's order, without those that the wrapper ignores."""
    named: Iterable[tuple[str, Tensor]] = wrapper.inner.named_parameters()
    ignored = _ignored(wrapper.module)
    return [Named(name, tensor, Code.DIVERGENCE_PARAMETERS) for name, tensor in named if name not in ignored]


def buffers_in(wrapper: Wrapper, chosen: Collection[str | None]) -> list[Named]:
    """The buffers that are synchronised at one of the chosen times; None stands for those that are no exception."""
    named: Iterable[tuple[str, Tensor]] = wrapper.inner.named_buffers()
    ignored, times = _ignored(wrapper.module), wrapper.chosen_buffers
    return [
        Named(name, _dense(tensor), Code.DIVERGENCE_BUFFERS)
        for name, tensor in named
        if name not in ignored and times.get(name) in chosen
    ]


def state_of(parameters: Sequence[Named], optimizer: Any) -> list[Named]:
    """Return the optimizer state of these parameters that has their shape."""
    return [
        Named(f"{key} of {name}", _dense(value), Code.DIVERGENCE_PARAMETERS, is_optional=True, is_state=True)
        for name, parameter, *_ in parameters
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]


def gradients_of(parameters: Sequence[Named], own: Container[int]) -> list[Tensor | None]:
    """The gradients that an optimizer applied to its `own` parameters."""
    return [each.tensor.grad for each in parameters if id(each.tensor) in own]


def gradients_in(parameters: Sequence[Named]) -> list[Named]:
    """Return the gradients that exist."""
    return [
        Named(f"gradient of {name}", _dense(gradient.detach()), Code.DIVERGENCE_GRADIENTS, is_optional=True)
        for name, parameter, *_ in parameters
        if (gradient := parameter.grad) is not None
    ]


def fingerprint(tensors: Iterable[Tensor | None]) -> tuple[str, ...]:
    """Numbers, as text, that are the same for equal tensors, and next to never for others."""
    return tuple("" if tensor is None else _number(_dense(tensor.detach())) for tensor in tensors)


def _number(tensor: Tensor) -> str:
    """The sum of running sums, in which each element counts by its place, too; as text, since nan equals nothing."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return str(values.flatten().cumsum(0, dtype=torch.float64).sum().item())


def syncs_buffers(module: Any) -> bool:
    """True if the wrapper is configured to synchronise buffers in forwards, though not in every one."""
    return bool(getattr(module, "forward_sync_buffers", getattr(module, "broadcast_buffers", True)))


def syncs_buffers_last(module: Any) -> bool:
    """True if a buffer hook runs after the forward."""
    hook = getattr(module, "buffer_hook", None)
    return hook is not None and getattr(hook.buffer_comm_hook_location, "name", "") == "POST_FORWARD"


def _ignored(module: Any) -> Any:
    return getattr(module, "parameters_to_ignore", ())


def _dense(tensor: Tensor) -> Tensor:
    """Sparse tensors, such as the momentum of a sparse gradient, cannot be compared as they are."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
