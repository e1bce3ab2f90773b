"""check="replicas" of models that have no wrapper: a program that reduces gradients itself.

A parameter whose gradient the program brought to an all_reduce (sum or average) is a replica on the ranks of that
group, be it alone or in one flat tensor that has as many elements as all gradients of a module that ran. Those are
compared when the next training forward of such a module begins, whatever made the step, and when the program returns.

Ranks are compared after the same all_reduce, told by its sequence number; so a rank that went another way is compared
with nobody. Tensors pair up in the order in which they were reduced, as the stages of a pipeline share an embedding
under two names. Ranks that hold the same tensors in another order hold the same replicas: their gradients will tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from torch import Tensor
from torch.nn import Module

from ddpsim.simulator.diagnosis.replica_divergence import when_reduced_by
from ddpsim.simulator.process_group.exchanged import Exchanged
from ddpsim.simulator.process_group.replica_judge import Look
from ddpsim.simulator.process_group.replica_tensors import Named
from ddpsim.simulator.process_group.wrapper_registry import WrapperRegistry
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.verdict import Code

_REDUCTIONS = frozenset({"SUM", "AVG", "PREMUL_SUM"})
_OPERATIONS = frozenset({"all_reduce", "all_reduce_coalesced"})
_LOOKS = 64
"""How often per forward all gradients are looked through for the tensor of a call."""


class _Replicated(NamedTuple):
    """What one group of a rank has reduced."""

    size: int
    latest: Pending
    """The latest call that did."""
    parameters: dict[int, Named]
    """By id, in the order of the first calls."""


class _Rank:
    """What is known of one rank."""

    def __init__(self) -> None:
        self.roots: list[ref[Module]] = []
        self.known: dict[int, ref[Module]] = {}
        """All modules that are a root, or inside one, by id."""
        self.gradients: dict[int, Named] = {}
        """By address."""
        self.flat: dict[int, list[Named]] = {}
        """All of a root, by how many elements they have."""
        self.looks = 0
        self.replicated: dict[str, _Replicated] = {}
        self.compared: dict[str, int] = {}


class Sink(Protocol):
    """Is told of replicas."""

    def look(self, look: Look) -> None:
        """A replica, at a moment at which it should be equal to the others."""


class HandReduced:
    """Watches one execution for them."""

    def __init__(self, wrappers: WrapperRegistry, judge: Sink, exchanged: Exchanged) -> None:
        self._wrappers = wrappers
        self._judge = judge
        self._exchanged = exchanged
        self._ranks: dict[int, _Rank] = {}

    def module_trains(self, rank: int, module: Module) -> None:
        """A module begins a forward that a backward may follow."""
        mine = self._ranks.setdefault(rank, _Rank())
        known = mine.known.get(id(module))
        if known is None or known() is not module:
            self._learn(rank, mine, module)
        if any(root() is module for root in mine.roots):
            mine.looks = 0
            self._compare(rank, mine)

    def call_issued(self, pending: Pending) -> None:
        """A rank's program makes a call."""
        call = pending.call
        mine = self._ranks.get(call.rank)
        signature = call.signature
        if mine is None or signature.operation not in _OPERATIONS or signature.reduction not in _REDUCTIONS:
            return
        if not mine.roots or len(_brought(pending)) == 0:
            return
        found = [each for tensor in _brought(pending) for each in self._behind(mine, tensor)]
        if found:
            size = len(pending.members)
            parameters = mine.replicated[call.group].parameters if call.group in mine.replicated else {}
            for each in found:
                parameters.setdefault(id(each.tensor), each)
            mine.replicated[call.group] = _Replicated(size, pending, parameters)

    def rank_returned(self, rank: int) -> None:
        """A rank's program returned."""
        if (mine := self._ranks.pop(rank, None)) is not None:
            self._compare(rank, mine, has_ended=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _learn(self, rank: int, mine: _Rank, module: Module) -> None:
        """A module that is inside none that ran before it."""
        inside = list(module.modules())
        mine.known.update((id(each), ref(each)) for each in inside)
        wrapped = {id(each) for wrapper in self._wrappers.of_rank(rank) for each in (wrapper.module, wrapper.inner)}
        if not any(id(each) in wrapped for each in inside):
            mine.roots.append(ref(module))

    def _behind(self, mine: _Rank, tensor: Tensor) -> list[Named]:
        """The parameters whose gradients a tensor is."""
        found = self._known_behind(mine, tensor)
        if not found and mine.looks < _LOOKS:
            mine.looks += 1
            self._look_through(mine)
            found = self._known_behind(mine, tensor)
        return found

    def _known_behind(self, mine: _Rank, tensor: Tensor) -> list[Named]:
        if tensor.is_sparse or not tensor.numel():
            return []
        alone = mine.gradients.get(tensor.data_ptr())
        if alone is not None and alone.tensor.numel() == tensor.numel():
            return [alone]
        return mine.flat.get(tensor.numel(), []) if tensor.dim() == 1 else []

    def _look_through(self, mine: _Rank) -> None:
        mine.gradients, mine.flat = {}, {}
        for root in mine.roots:
            module = root()
            own = [] if module is None else _with_gradients(module)
            mine.gradients.update((gradient.data_ptr(), each) for each, gradient in own)
            if len(own) > 1:
                mine.flat[sum(each.tensor.numel() for each, _ in own)] = [each for each, _ in own]

    def _compare(self, rank: int, mine: _Rank, *, has_ended: bool = False) -> None:
        for group, (size, latest, parameters) in mine.replicated.items():
            sequence = latest.call.sequence
            if not latest.is_complete or (mine.compared.get(group) == sequence and not has_ended):
                continue
            mine.compared[group] = sequence
            self._judge.look(
                Look(
                    (group, -1),
                    rank,
                    size,
                    when_reduced_by(group, sequence, has_ended=has_ended),
                    _told_apart(list(parameters.values())),
                    site_here(),
                    has_trained=True,
                    exchanged=self._exchanged.by(rank),
                )
            )


def _brought(pending: Pending) -> Sequence[Tensor]:
    """The rank's own tensors."""
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


def _with_gradients(module: Module) -> list[tuple[Named, Tensor]]:
    named: Iterable[tuple[str, Any]] = module.named_parameters()
    return [
        (Named(name, parameter, Code.DIVERGENCE_PARAMETERS), parameter.grad)
        for name, parameter in named
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]
