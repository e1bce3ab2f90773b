"""check="replicas" of models that have no wrapper: a program that reduces gradients itself.

A parameter whose gradient the program brought to an all_reduce (sum or average) is a replica on the ranks of that
group, be it alone or in one flat tensor of all gradients of a module that ran (flat_gradients.py). Those are
compared when the next training forward of such a module begins, whatever made the step, and when the program returns.
So are, once, parameters that the program brought itself, to average them (averaged_parameters.py), or all of a module
in one flat tensor.

Ranks are compared after the same all_reduce, told by its sequence number; so a rank that went another way is compared
with nobody. Tensors pair up in the order in which they were reduced, as the stages of a pipeline share an embedding
under two names. Ranks that hold the same tensors in another order hold the same replicas: their gradients will tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor
from torch.nn import Module

from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.diagnosis.replica_divergence import Moment, when_averaged_by, when_reduced_by
from ddpsim.simulator.replicas.averaged_parameters import AveragedParameters
from ddpsim.simulator.replicas.communicated_elements import CommunicatedElements
from ddpsim.simulator.replicas.flat_gradients import FlatGradients, Of, brought, gradient_of, value_of
from ddpsim.simulator.replicas.replica_facts import NoticeReplica, ReplicaSample
from ddpsim.simulator.replicas.replica_tensors import Named
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.verdict import Code

_REDUCTIONS = frozenset({"SUM", "AVG", "PREMUL_SUM"})
_OPERATIONS = frozenset({"all_reduce", "all_reduce_coalesced"})
_LOOKS = 64
"""How often per forward all gradients are looked through for the tensor of a call."""


class _Replicated(NamedTuple):
    """The parameters whose gradients one group of a rank has reduced."""

    size: int
    latest: Pending
    """The latest call that did."""
    parameters: dict[int, Named]
    """By id, in the order of the first calls."""


class _Rank:
    """The known facts about one rank."""

    def __init__(self) -> None:
        self.roots: list[ref[Module]] = []
        self.known: dict[int, ref[Module]] = {}
        """All modules that are a root, or inside one, by id."""
        self.gradients: dict[int, Named] = {}
        """By address."""
        self.flat: dict[int, list[tuple[list[Named], Of]]] = {}
        """All gradients, and all parameters, of each root, by how many elements they have."""
        self.awaited: list[FlatGradients] = []
        """Brought to calls, and not seen in the gradients since."""
        self.parameters: dict[int, Named] = {}
        """By address."""
        self.averaged = AveragedParameters()
        self.averaged_flat: list[FlatGradients] = []
        """All parameters of a root, brought to calls since the last forward."""
        self.looks = 0
        self.replicated: dict[str, _Replicated] = {}
        self.compared: dict[str, int] = {}


class HandReduced:
    """Compares the replicas of models that have no wrapper, for one execution."""

    def __init__(self, wrappers: WrapperRegistry, notice: NoticeReplica, communicated: CommunicatedElements) -> None:
        self._wrappers = wrappers
        self._notice = notice
        self._communicated = communicated
        self._ranks: dict[int, _Rank] = {}

    def module_trains(self, rank: int, module: Module) -> None:
        """A module begins a forward that a backward may follow."""
        mine = self._ranks.setdefault(rank, _Rank())
        known = mine.known.get(id(module))
        if known is None or known() is not module:
            self._learn(rank, mine, module)
        if any(root() is module for root in mine.roots):
            mine.looks = 0
            self._find_applied(mine)
            self._compare(rank, mine)
            self._compare_averaged(rank, mine)

    def call_issued(self, pending: Pending) -> None:
        """A rank's program makes a call."""
        call = pending.call
        mine = self._ranks.get(call.rank)
        signature = call.signature
        if mine is None or signature.operation not in _OPERATIONS or signature.reduction not in _REDUCTIONS:
            return
        if not mine.roots or len(_brought(pending)) == 0:
            return
        self._find_applied(mine)
        contents: Sequence[Tensor] = pending.payload.inputs
        found: list[Named] = []
        for tensor, content in zip(_brought(pending), contents, strict=True):
            behind = self._behind(mine, pending, tensor, content)
            if isinstance(behind, FlatGradients) and behind.of is value_of:
                mine.averaged_flat.append(behind)
            elif isinstance(behind, FlatGradients):
                own = {id(each.tensor) for each in behind.parameters}
                mine.awaited = [*(each for each in mine.awaited if not _is_of(each, own)), behind]
            elif behind is not None:
                found.append(behind)
            elif (parameter := self._parameter_at(mine, tensor)) is not None:
                mine.averaged.note(parameter, pending, content)
        self._are_replicas(mine, pending, found)

    def step_begins(self, rank: int, own: Container[int]) -> None:
        """An optimizer is about to use the gradients of its `own` parameters, which are told by their ids."""
        if (mine := self._ranks.get(rank)) is not None and mine.awaited:
            self._find_applied(mine)
            mine.awaited = [each for each in mine.awaited if not _is_of(each, own)]

    def names(self, rank: int) -> dict[int, str]:
        """The names of the parameters of a rank's models, as far as those have run, by id."""
        roots = [root() for root in self._ranks[rank].roots] if rank in self._ranks else []
        named = [pair for root in roots if root is not None for pair in root.named_parameters()]
        return {id(parameter): name for name, parameter in named}

    def rank_returned(self, rank: int) -> None:
        """A rank's program returned."""
        if (mine := self._ranks.pop(rank, None)) is not None:
            self._find_applied(mine)
            self._compare_averaged(rank, mine, has_ended=True)
            self._compare(rank, mine, has_ended=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _learn(self, rank: int, mine: _Rank, module: Module) -> None:
        """Record a module that is inside none that ran before it."""
        inside = list(module.modules())
        mine.known.update((id(each), ref(each)) for each in inside)
        wrapped = {id(each) for wrapper in self._wrappers.of_rank(rank) for each in (wrapper.module, wrapper.inner)}
        if not any(id(each) in wrapped for each in inside):
            mine.roots.append(ref(module))

    def _find_applied(self, mine: _Rank) -> None:
        """Check whether gradients now hold the results of calls on flat tensors."""
        for each in [each for each in mine.awaited if each.is_applied()]:
            mine.awaited.remove(each)
            self._are_replicas(mine, each.pending, each.parameters)

    def _are_replicas(self, mine: _Rank, pending: Pending, found: Sequence[Named]) -> None:
        """Record that a call reduced the gradients of these parameters."""
        group = pending.call.group
        if found:
            before = mine.replicated.get(group)
            parameters = {} if before is None else before.parameters
            for each in found:
                parameters.setdefault(id(each.tensor), each)
            is_latest = before is None or before.latest.call.sequence < pending.call.sequence
            latest = pending if before is None or is_latest else before.latest
            mine.replicated[group] = _Replicated(len(pending.members), latest, parameters)

    def _behind(self, mine: _Rank, pending: Pending, tensor: Tensor, content: Tensor) -> Named | FlatGradients | None:
        """The parameter whose gradient a tensor is, or those whose gradients are its content."""
        found = self._known_behind(mine, pending, tensor, content)
        if found is None and mine.looks < _LOOKS:
            mine.looks += 1
            self._look_through(mine)
            found = self._known_behind(mine, pending, tensor, content)
        return found

    def _known_behind(
        self, mine: _Rank, pending: Pending, tensor: Tensor, content: Tensor
    ) -> Named | FlatGradients | None:
        if tensor.is_sparse or not tensor.numel():
            return None
        alone = mine.gradients.get(tensor.data_ptr())
        if alone is not None and alone.tensor.numel() == tensor.numel() and _is_at(alone, tensor.data_ptr()):
            return alone
        candidates = mine.flat.get(tensor.numel(), []) if tensor.dim() == 1 else []
        return next(filter(None, (brought(pending, tensor, content, *each) for each in candidates)), None)

    def _parameter_at(self, mine: _Rank, tensor: Tensor) -> Named | None:
        """The parameter that a tensor is, or the `.data` of."""
        found = None if tensor.is_sparse else mine.parameters.get(tensor.data_ptr())
        is_there = found is not None and found.tensor.data_ptr() == tensor.data_ptr()
        return found if found is not None and is_there and found.tensor.numel() == tensor.numel() > 0 else None

    def _look_through(self, mine: _Rank) -> None:
        mine.gradients, mine.flat, mine.parameters = {}, {}, {}
        for root in mine.roots:
            module = root()
            if module is not None:
                mine.parameters.update((each.tensor.data_ptr(), each) for each in _parameters_of(module))
            own = [] if module is None else _with_gradients(module)
            mine.gradients.update((gradient.data_ptr(), each) for each, gradient in own)
            if len(own) > 1:
                count = sum(each.tensor.numel() for each, _ in own)
                mine.flat.setdefault(count, []).append(([each for each, _ in own], gradient_of))
            every = [] if module is None else _parameters_of(module)
            if len(every) > 1:
                count = sum(each.tensor.numel() for each in every)
                mine.flat.setdefault(count, []).append((every, value_of))

    def _compare_averaged(self, rank: int, mine: _Rank, *, has_ended: bool = False) -> None:
        for group, average in mine.averaged.taken().items():
            moment = when_averaged_by(group, average.latest.sequence)
            self._look(rank, group, average.size, moment, average.parameters, has_ended=has_ended)
        for flat in [each for each in mine.averaged_flat if each.is_applied()]:
            call = flat.pending.call
            moment = when_averaged_by(call.group, call.sequence)
            self._look(rank, call.group, flat.size, moment, flat.parameters, has_ended=has_ended)
        mine.averaged_flat = []

    def _compare(self, rank: int, mine: _Rank, *, has_ended: bool = False) -> None:
        for group, (size, latest, parameters) in mine.replicated.items():
            sequence = latest.call.sequence
            if not latest.is_complete or (mine.compared.get(group) == sequence and not has_ended):
                continue
            mine.compared[group] = sequence
            moment = when_reduced_by(group, sequence, has_ended=has_ended)
            self._look(rank, group, size, moment, list(parameters.values()), has_ended=has_ended)

    def _look(
        self, rank: int, group: str, size: int, moment: Moment, parameters: Sequence[Named], *, has_ended: bool
    ) -> None:
        self._notice(
            ReplicaSample(
                (group, -1),
                rank,
                size,
                moment,
                _told_apart(parameters),
                None if has_ended else site_here(),
                has_trained=True,
                communicated=self._communicated.by(rank),
            )
        )


def _brought(pending: Pending) -> Sequence[Tensor]:
    """Return the rank's own tensors of a call."""
    payload = pending.payload if pending.poisoned is None else pending.poisoned.brought
    inputs: Sequence[Tensor] = payload.inputs
    return inputs


def _told_apart(parameters: Sequence[Named]) -> list[Named]:
    """With a number behind the name where several modules have one: the second `weight` is `weight (2)`."""
    seen = Counter[str]()
    numbered = []
    for each in parameters:
        seen[each.name] += 1
        number = seen[each.name]
        numbered.append(each if number == 1 else each._replace(name=f"{each.name} ({number})"))
    return numbered


def _is_of(flat: FlatGradients, own: Container[int]) -> bool:
    return any(id(each.tensor) in own for each in flat.parameters)


def _is_at(parameter: Named, address: int) -> bool:
    """True if its gradient is still there: something else may be by now."""
    gradient = parameter.tensor.grad
    return gradient is not None and gradient.data_ptr() == address


def _parameters_of(module: Module) -> list[Named]:
    return [Named(name, each, Code.DIVERGENCE_PARAMETERS) for name, each in module.named_parameters()]


def _with_gradients(module: Module) -> list[tuple[Named, Tensor]]:
    named: Iterable[tuple[str, Any]] = module.named_parameters()
    return [
        (Named(name, parameter, Code.DIVERGENCE_PARAMETERS), parameter.grad)
        for name, parameter in named
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]
