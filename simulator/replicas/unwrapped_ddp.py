"""check="replicas" of models without a wrapper: samples the replicas of a program that reduces gradients itself.

A parameter whose gradient the program passed to an all_reduce (sum or average) is a replica on the ranks of that group.
It may have passed the gradient alone, or in one flat tensor of all gradients of a module, or of all modules that ran
(flat_gradients.py). These parameters are compared when the next training forward of such a module begins, and when the
program returns.

A program may also average parameters every few steps (local SGD). A parameter that it passed to an all_reduce, alone or
in a flat tensor of all parameters of a module, is compared once, at the next such time, if it holds the sum then,
possibly scaled. If the program trains before that, or does not use the sum, it is not compared.

Ranks are compared after the same all_reduce, by its sequence number. Tensors pair up in the order in which they were
reduced, because two stages of a pipeline may have different names for a shared embedding.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Sequence
from math import prod
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Module

from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.diagnosis import replica_divergence
from ddpsim.simulator.replicas import flat_gradients, replica_tensors
from ddpsim.simulator.replicas.flat_gradients import FlatTensorCall, gradient_of, value_of
from ddpsim.simulator.replicas.replica_tensors import NoticeReplica, ReplicaSample, ReplicaTensor
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.modes import suspend_modes
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import values_by_key


class _SummedParameter:
    """A parameter that a program passed to an all_reduce, and the result of the call."""

    def __init__(self, parameter: ReplicaTensor, pending: PendingCall, tensor: Tensor) -> None:
        self.parameter = parameter
        self.pending = pending
        self._sum: Tensor | None = None

        def keep_sum() -> None:
            with torch.no_grad(), suspend_modes():
                self._sum = tensor.detach().clone()

        pending.when_moved = keep_sum

    def holds_sum(self) -> bool:
        """Return whether the parameter now holds the result of its all_reduce, possibly scaled."""
        if self._sum is None or not self.pending.is_complete:
            return False
        with torch.no_grad(), suspend_modes():
            now, total = self.parameter.tensor.detach().reshape(-1), self._sum.reshape(-1)
            return flat_gradients.is_multiple_of(now, total) if total.any() else not now.any()


_REDUCTIONS = frozenset({"SUM", "AVG", "PREMUL_SUM"})
_OPERATIONS = frozenset({"all_reduce", "all_reduce_coalesced"})
_MOST_SEARCHES = 64
"""How often per forward the tensor of a call is searched among all gradients."""


class _ReducedParameters(NamedTuple):
    """The parameters whose gradients a rank has reduced in one process group, by calls of its program."""

    size: int
    latest: PendingCall
    """The latest call that reduced such gradients."""
    parameters: dict[int, ReplicaTensor]
    """The parameters by id, in the order in which their gradients were first reduced."""
    start: tuple[str, ...]
    """The fingerprints of the parameters at that time, if it is not the default group."""


class _RankModules:
    """The modules of one rank, and which of their gradients and parameters the program has passed to calls."""

    def __init__(self) -> None:
        self.roots: list[ref[Module]] = []
        self.known: dict[int, ref[Module]] = {}
        """By id, the root modules (modules that are part of no other module) and all modules inside them."""
        self.gradients: dict[int, ReplicaTensor] = {}
        """The parameters by the memory address of their gradient."""
        self.flat: dict[int, list[tuple[list[ReplicaTensor], flat_gradients.PartReader]]] = {}
        """By number of elements, the parameters of each root module, and of all: a flat tensor may hold all of them."""
        self.awaited: list[FlatTensorCall] = []
        """Flat tensors that were passed to calls whose sums the gradients do not hold yet."""
        self.parameters: dict[int, ReplicaTensor] = {}
        """The parameters by their memory address."""
        self.summed: dict[int, _SummedParameter] = {}
        """By the id of a parameter, its latest all_reduce since the last forward; the latest of all is the last."""
        self.averaged_flat: list[FlatTensorCall] = []
        """Flat tensors of all parameters of a root module that were passed to calls since the last forward."""
        self.looks = 0
        self.replicated: dict[str, _ReducedParameters] = {}
        self.compared: dict[str, int] = {}


class UnwrappedReplicas:
    """Compares the replicas of models that have no wrapper, for one execution."""

    def __init__(self, wrappers: WrapperRegistry, notice: NoticeReplica, communicated: Counter[int]) -> None:
        self._wrappers = wrappers
        self._notice = notice
        self._communicated = communicated
        self._ranks: dict[int, _RankModules] = {}
        self._others: dict[int, Counter[Sequence[int]]] = defaultdict(Counter)
        """By rank and shape: how many tensors it passed to calls since its first forward, without gradients."""

    def training_forward_begins(self, rank: int, module: Module) -> None:
        """Record that a module begins a training forward."""
        if rank not in self._ranks:
            self._ranks[rank] = _RankModules()
            self._others.pop(rank, None)
        mine = self._ranks[rank]
        known = mine.known.get(id(module))
        if known is None or known() is not module:
            self._record_module(rank, mine, module)
        if any(root() is module for root in mine.roots):
            mine.looks = 0
            self._record_applied_sums(mine)
            self._sample_reduced(rank, mine)
            self._sample_averaged(rank, mine)

    def call_issued(self, pending: PendingCall) -> None:
        """Record that a rank's program makes a communication call."""
        call = pending.call
        mine = self._ranks.get(call.rank)
        signature = call.signature
        others = self._others[call.rank]
        others.update(signature.shapes)
        if mine is None or signature.operation not in _OPERATIONS or signature.reduction not in _REDUCTIONS:
            return
        if not mine.roots or len(_rank_tensors(pending)) == 0:
            return
        self._record_applied_sums(mine)
        contents: Sequence[Tensor] = pending.payload.inputs
        found: list[ReplicaTensor] = []
        for tensor, content in zip(_rank_tensors(pending), contents, strict=True):
            behind = self._find_gradients(mine, pending, tensor, content)
            is_value = isinstance(behind, FlatTensorCall) and behind.of is value_of
            others[tuple(tensor.shape)] -= behind is not None and not is_value
            if isinstance(behind, FlatTensorCall) and is_value:
                mine.averaged_flat.append(behind)
            elif isinstance(behind, FlatTensorCall):
                own = {id(each.tensor) for each in behind.parameters}
                mine.awaited = [*(each for each in mine.awaited if not _has_parameter_of(each, own)), behind]
            elif behind is not None:
                found.append(behind)
            elif (parameter := self._find_parameter(mine, tensor)) is not None:
                mine.summed.pop(id(parameter.tensor), None)
                mine.summed[id(parameter.tensor)] = _SummedParameter(parameter, pending, content)
        self._record_reduction(mine, pending, found)

    def optimizer_step_begins(self, rank: int, own: Container[int]) -> None:
        """Record that an optimizer is about to use gradients; `own` has the ids of the optimizer's parameters."""
        if (mine := self._ranks.get(rank)) is not None and mine.awaited:
            self._record_applied_sums(mine)
            mine.awaited = [each for each in mine.awaited if not _has_parameter_of(each, own)]

    def reduced_parameters(self, rank: int) -> set[int]:
        """Return the ids of the parameters whose gradients the program of a rank has reduced."""
        groups = self._ranks[rank].replicated.values() if rank in self._ranks else ()
        return {number for each in groups for number in each.parameters}

    def other_elements(self, rank: int, parameters: Collection[Sequence[int]]) -> int:
        """Return how many elements that are no gradients a rank has communicated since its first training forward, in
        tensors that may hold parameters, or gradients, of these shapes: alone, in a row, or, of two dimensions and
        more, stacked."""
        return sum(
            prod(shape) * count
            for shape, count in self._others[rank].items()
            if len(shape) == 1 or any(shape[-max(len(own), 2) :] == own for own in parameters)
        )

    def parameter_names_of_rank(self, rank: int) -> dict[int, str]:
        """Return the names of the parameters of the models that have run on a rank, by the id of the parameter."""
        roots = [root() for root in self._ranks[rank].roots] if rank in self._ranks else []
        named = [pair for root in roots if root is not None for pair in root.named_parameters()]
        return {id(parameter): name for name, parameter in named}

    def rank_returned(self, rank: int) -> None:
        """Record that a rank's program returned."""
        if (mine := self._ranks.pop(rank, None)) is not None:
            self._record_applied_sums(mine)
            self._sample_averaged(rank, mine, has_ended=True)
            self._sample_reduced(rank, mine, has_ended=True)

    def _record_module(self, rank: int, mine: _RankModules, module: Module) -> None:
        """Record a module as a root (part of no other module), unless it is part of a module that ran before."""
        inside = list(module.modules())
        mine.known.update((id(each), ref(each)) for each in inside)
        wrappers = self._wrappers.wrappers_of_rank(rank)
        wrapped = {id(each) for wrapper in wrappers for each in (wrapper.module, wrapper.inner_module)}
        if not any(id(each) in wrapped for each in inside):
            mine.roots.append(ref(module))

    def _record_applied_sums(self, mine: _RankModules) -> None:
        """Record those calls on flat tensors whose sums the gradients hold now."""
        for each in [each for each in mine.awaited if each.is_applied()]:
            mine.awaited.remove(each)
            self._record_reduction(mine, each.pending, each.parameters)

    def _record_reduction(self, mine: _RankModules, pending: PendingCall, found: Sequence[ReplicaTensor]) -> None:
        """Record that a call of the program reduced the gradients of these parameters."""
        if found:
            group, size = pending.call.group, len(pending.members)
            _, latest, parameters, start = mine.replicated.get(group, (0, pending, {}, ()))
            new = [each for each in found if id(each.tensor) not in parameters]
            parameters.update((id(each.tensor), each) for each in new)
            if group != "default":
                with torch.no_grad(), suspend_modes():
                    start += replica_tensors.fingerprint(each.tensor for each in new)
            latest = max(latest, pending, key=lambda each: each.call.sequence)
            mine.replicated[group] = _ReducedParameters(size, latest, parameters, start)

    def _find_gradients(
        self, mine: _RankModules, pending: PendingCall, tensor: Tensor, content: Tensor
    ) -> ReplicaTensor | FlatTensorCall | None:
        """Return the parameters whose gradients a tensor holds: one parameter, or all parameters of a flat tensor."""
        found = self._find_gradients_of_parameters(mine, pending, tensor, content)
        if found is None and mine.looks < _MOST_SEARCHES:
            mine.looks += 1
            self._index_parameters(mine)
            found = self._find_gradients_of_parameters(mine, pending, tensor, content)
        return found

    def _find_gradients_of_parameters(
        self, mine: _RankModules, pending: PendingCall, tensor: Tensor, content: Tensor
    ) -> ReplicaTensor | FlatTensorCall | None:
        if tensor.is_sparse or not tensor.numel():
            return None
        alone = mine.gradients.get(tensor.data_ptr())
        if alone is not None and alone.tensor.numel() == tensor.numel() and _has_gradient_at(alone, tensor.data_ptr()):
            return alone
        candidates = mine.flat.get(tensor.numel(), []) if tensor.dim() == 1 else []
        return next(
            filter(None, (flat_gradients.flat_tensor_call(pending, tensor, content, *each) for each in candidates)),
            None,
        )

    def _find_parameter(self, mine: _RankModules, tensor: Tensor) -> ReplicaTensor | None:
        """Return the parameter that is this tensor, or whose `.data` is this tensor; None if there is none."""
        found = None if tensor.is_sparse else mine.parameters.get(tensor.data_ptr())
        is_there = found is not None and found.tensor.data_ptr() == tensor.data_ptr()
        return found if found is not None and is_there and found.tensor.numel() == tensor.numel() > 0 else None

    def _index_parameters(self, mine: _RankModules) -> None:
        mine.gradients, mine.flat, mine.parameters = {}, {}, {}
        owned = [list(module.named_parameters()) for root in mine.roots if (module := root()) is not None]
        whole = {id(pair[1]): pair for pairs in owned for pair in pairs}  # of a model of which only parts are called
        for named in [*owned, [*whole.values()]] if len(owned) > 1 else owned:
            every = [ReplicaTensor(name, each, Code.DIVERGENCE_PARAMETERS) for name, each in named]
            reduced = [each for each in every if (grad := each.tensor.grad) is not None and not grad.is_sparse]
            mine.parameters.update((each.tensor.data_ptr(), each) for each in every)
            mine.gradients.update((each.tensor.grad.data_ptr(), each) for each in reduced)  # type: ignore[union-attr]
            for parameters, of in ((reduced, gradient_of), (every, value_of)):
                if len(parameters) > 1:
                    count = sum(each.tensor.numel() for each in parameters)
                    mine.flat.setdefault(count, []).append((parameters, of))

    def _sample_averaged(self, rank: int, mine: _RankModules, *, has_ended: bool = False) -> None:
        """Compare the parameters that the program has averaged, just before it trains on them."""
        by_group = values_by_key((each.pending.call.group, each) for each in mine.summed.values())
        summed = [group for group in by_group.values() if all(each.holds_sum() for each in group)]
        averages: list[tuple[_SummedParameter | FlatTensorCall, Sequence[ReplicaTensor]]] = [
            *((group[-1], [each.parameter for each in group]) for group in summed),
            *((flat, flat.parameters) for flat in mine.averaged_flat if flat.is_applied()),
        ]
        mine.summed, mine.averaged_flat = {}, []
        for latest, parameters in averages:
            call, size = latest.pending.call, len(latest.pending.members)
            moment = replica_divergence.point_of_manual_average(call.group, call.sequence)
            self._send_sample(rank, call.group, size, moment, parameters, has_ended=has_ended)

    def _sample_reduced(self, rank: int, mine: _RankModules, *, has_ended: bool = False) -> None:
        for group, (size, latest, parameters, start) in mine.replicated.items():
            sequence = latest.call.sequence
            if not latest.is_complete or (mine.compared.get(group) == sequence and not has_ended):
                continue
            mine.compared[group] = sequence
            moment = replica_divergence.point_of_manual_reduction(group, sequence, has_ended=has_ended)
            self._send_sample(rank, group, size, moment, list(parameters.values()), has_ended=has_ended, start=start)

    def _send_sample(
        self,
        rank: int,
        group: str,
        size: int,
        moment: replica_divergence.ComparisonPoint,
        parameters: Sequence[ReplicaTensor],
        *,
        has_ended: bool,
        start: tuple[str, ...] = (),
    ) -> None:
        tensors, site = _with_unique_names(parameters), None if has_ended else current_user_site()
        sample = ReplicaSample((group, -1), rank, size, moment, tensors, site, has_trained=True)
        self._notice(sample._replace(communicated=self._communicated[rank], start=start if has_ended else ()))


def _rank_tensors(pending: PendingCall) -> Sequence[Tensor]:
    payload = pending.payload if pending.poisoned is None else pending.poisoned.brought
    inputs: Sequence[Tensor] = payload.inputs
    return inputs


def _with_unique_names(parameters: Sequence[ReplicaTensor]) -> list[ReplicaTensor]:
    """Return the parameters with unique names: if several modules have a `weight`, the second is named `weight (2)`."""
    seen = Counter[str]()
    numbered = []
    for each in parameters:
        seen[each.name] += 1
        number = seen[each.name]
        numbered.append(each if number == 1 else each._replace(name=f"{each.name} ({number})"))
    return numbered


def _has_parameter_of(flat: FlatTensorCall, own: Container[int]) -> bool:
    return any(id(each.tensor) in own for each in flat.parameters)


def _has_gradient_at(parameter: ReplicaTensor, address: int) -> bool:
    gradient = parameter.tensor.grad
    return gradient is not None and gradient.data_ptr() == address
