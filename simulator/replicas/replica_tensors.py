"""The tensors of one replica, which are compared with other ranks, and the reports with them for replica_judge.py.

The reports are frozen values (`NoticedKind.REPLICA`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.attribution.wrapper import DdpWrapper, WrapperKey
from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Advice
from ddpsim.simulator.diagnosis.replica_divergence import ComparisonPoint
from ddpsim.simulator.model_tensors import local_part, optimizer_state_of
from ddpsim.simulator.verdict import Code


class ReplicaTensor(NamedTuple):
    """One tensor of a replica."""

    name: str
    tensor: Tensor
    code: Code
    is_optional: bool = False
    """True if other ranks need not have the tensor: for example, state of a sharded optimizer."""
    is_state: bool = False

    def __reduce__(self) -> "tuple[type[ReplicaTensor], tuple[Any, ...]]":
        """Pickle the tensor without its autograd graph and without the unused part of its storage."""
        return ReplicaTensor, (self.name, self.tensor.detach().cpu().clone(), *self[2:])


def wrapper_parameters(wrapper: DdpWrapper) -> list[ReplicaTensor]:
    """Return all parameters of a wrapped module in order, except those that the DDP wrapper ignores."""
    named: Iterable[tuple[str, Tensor]] = wrapper.inner_module.named_parameters()
    ignored = _ignored_names(wrapper.module)
    return [ReplicaTensor(name, tensor, Code.DIVERGENCE_PARAMETERS) for name, tensor in named if name not in ignored]


def wrapper_buffers(wrapper: DdpWrapper, chosen: Collection[str | None]) -> list[ReplicaTensor]:
    """Return the buffers that are synchronised at one of these times; None stands for the default time."""
    named: Iterable[tuple[str, Tensor]] = wrapper.inner_module.named_buffers()
    ignored, times = _ignored_names(wrapper.module), wrapper.chosen_buffers
    return [
        ReplicaTensor(name, local_part(tensor), Code.DIVERGENCE_BUFFERS)
        for name, tensor in named
        if name not in ignored and times.get(name) in chosen
    ]


def replica_state_of(parameters: Sequence[ReplicaTensor], optimizer: Any) -> list[ReplicaTensor]:
    """Return the tensors of the optimizer state that have the same shape as their parameter."""
    return [
        ReplicaTensor(name, local_part(value), Code.DIVERGENCE_PARAMETERS, is_optional=True, is_state=True)
        for name, value in optimizer_state_of([each[:2] for each in parameters], optimizer)
    ]


def gradient_tensors(parameters: Sequence[ReplicaTensor]) -> list[ReplicaTensor]:
    """Return the gradients of these parameters, without parameters that have no gradient."""
    return [
        ReplicaTensor(f"gradient of {name}", local_part(gradient), Code.DIVERGENCE_GRADIENTS, is_optional=True)
        for name, parameter, *_ in parameters
        if (gradient := parameter.grad) is not None
    ]


def fingerprint(tensors: Iterable[Tensor | None]) -> tuple[str, ...]:
    """Return a short text for each tensor; texts are equal for equal tensors, and almost never for different ones."""
    return tuple("" if tensor is None else _tensor_fingerprint(local_part(tensor)) for tensor in tensors)


def _tensor_fingerprint(tensor: Tensor) -> str:
    """Return a checksum of a tensor: the sum of its running sums, which depends on the order of elements. It is a text,
    because nan does not equal nan."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return str(values.flatten().cumsum(0, dtype=torch.float64).sum().item())


def syncs_buffers(module: Any) -> bool:
    """Return whether the DDP wrapper is configured to synchronise buffers in its synchronising forwards."""
    return bool(getattr(module, "forward_sync_buffers", getattr(module, "broadcast_buffers", True)))


def syncs_buffers_last(module: Any) -> bool:
    """Return whether the DDP wrapper synchronises buffers after the forward."""
    hook = getattr(module, "buffer_hook", None)
    return hook is not None and getattr(hook.buffer_comm_hook_location, "name", "") == "POST_FORWARD"


def _ignored_names(module: Any) -> Any:
    return getattr(module, "parameters_to_ignore", ())


class StepInputs(NamedTuple):
    """The inputs of one rank's optimizer step, as fingerprints: equal texts mean equal tensors."""

    start: tuple[str, ...]
    """The parameters at the beginning of the step's forward."""
    gradients: tuple[str, ...]


class ReplicaSample(NamedTuple):
    """The tensors of one rank's replica of a model, at a time when they should equal those of the other ranks."""

    key: WrapperKey
    rank: int
    size: int
    """The number of ranks that have the wrapper."""
    moment: ComparisonPoint
    tensors: Sequence[ReplicaTensor]
    site: Site | None
    """The program line of the sample; None after the program returned: findings then name the latest line."""
    has_trained: bool
    """True if the wrapper has made a training forward."""
    inputs: StepInputs | None = None
    """The inputs of the optimizer step; like the next five fields, only set in samples taken after one."""
    unreduced: str = ""
    """The first gradient bucket that was not reduced in the wrapper's step, and why."""
    unreduced_by: Advice[[]] | None = None
    """The cause if the step was made before a reduction, or no backward made one."""
    is_late: bool = False
    """True if gradients were accumulated after the reduction of the step had ended."""
    forwards: int = 0
    """The number of forwards of the wrapper in the step's closure: each rank's optimizer may decide it by itself."""
    unwaited: Call | None = None
    """A call of the program that the rank had not waited for."""
    communicated: int = 0
    """The number of elements that the rank's program has passed to its own calls so far."""
    start: tuple[str, ...] = ()
    """The fingerprints that the tensors had at first; only set in the last sample of a group of some ranks."""


class WrapperProgress(NamedTuple):
    """How far a DDP wrapper is on one rank."""

    key: WrapperKey
    rank: int
    step: int
    """The number of the wrapper's latest synchronising forward."""
    aligned_step: int
    """The wrapper's step at the end of the last join context."""
    is_joined: bool
    """True after the wrapper's rank ran out of input, so that it only answers the collectives of other ranks."""
    reduced: frozenset[str]
    """The names of the parameters in the wrapper's buckets; empty if the buckets are not known."""

    def is_reduced(self, parameter: str) -> bool:
        """Return whether a parameter is in one of the wrapper's buckets; true if the buckets are not known."""
        return not self.reduced or parameter in self.reduced


class FinalParameters(NamedTuple):
    """The parameters of a rank's models when its program returned."""

    rank: int
    left: Sequence[tuple[WrapperKey, Sequence[ReplicaTensor]]]
    communicated: int
    beside: int
    """How many parameters with a gradient optimizers have stepped that are in none of the rank's DDP models, if any."""


ReplicaFact = ReplicaSample | WrapperProgress | FinalParameters

NoticeReplica = Callable[[ReplicaFact], None]
"""A function that sends a report about replicas to the judge (replica_judge.py)."""
