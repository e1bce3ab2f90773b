"""check="replicas": the replicas of a wrapped model are compared where they should be equal.

After each optimizer step: parameters, by name and order, and optimizer state; and the buffers that a hook synchronises
after the forward. Those that are synchronised before each forward, as is the default, differ after it by design (each
rank updates its running statistics). They are compared where it would tell: when the inner module runs in evaluation
mode, past the wrapper; and at the first step if nothing ever synchronises them.

Ranks are compared at the same step of the wrapper (Note [Steps] in wrapper.py) and the same optimizer step since.
Note [Several optimizers]. Ranks may step several optimizers of one wrapper in different order. So steps are counted for
each optimizer, which is told on all ranks by the position of its first parameter in the model; and what another one
changes is left out, once that has made a step. Of an optimizer's state only what has a parameter's shape is compared:
numbers may well be a rank's own, such as the loss that LBFGS keeps.

There is no communication: the first rank's tensors are copied, each other rank's compared with the copy, and it is let
go once everybody who can come has come.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.diagnosis.replica_divergence import (
    Circumstances,
    Moment,
    Side,
    divergence,
    skip_text,
    skipped_step,
)
from ddpsim.simulator.process_group.replica_comparison import (
    Comparison,
    StepInputs,
    first_difference,
    first_index,
    first_position,
    value_at,
)
from ddpsim.simulator.process_group.replica_tensors import (
    Named,
    buffers_in,
    fingerprint,
    gradients_of,
    parameters_in,
    parameters_of,
    state_of,
    syncs_buffers,
    syncs_buffers_last,
)
from ddpsim.simulator.process_group.wrapper import PROGRESS, Wrapper, WrapperKey
from ddpsim.simulator.process_group.wrapper_registry import WrapperRegistry
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.verdict import Code, Finding

_LOOKS = 64
"""How often per moment it is looked whether everybody has come."""


class _Skip(NamedTuple):
    """An optimizer step after the last synchronising forward that some ranks left out."""

    moment: Moment
    skipper_sites: dict[int, Site]
    """The lines of the last steps that they did make."""
    other_sites: dict[int, Site]


class Replicas:
    """Compares the replicas of one execution."""

    def __init__(
        self, wrappers: WrapperRegistry, unwaited: Callable[[int], Sequence[Call]], *, tolerance: float = 0.0
    ) -> None:
        self._wrappers = wrappers
        self._unwaited = unwaited
        """The user's calls that a rank has not waited for."""
        self._tolerance = tolerance
        self._open: dict[WrapperKey, dict[Moment, Comparison]] = {}
        self._optimizer_steps: dict[tuple[Wrapper, int], tuple[int, int]] = {}
        """By optimizer, see Note [Several optimizers]: the latest step of the wrapper, and the optimizer's since."""
        self._optimizers: dict[Wrapper, WeakSet[Any]] = {}
        """Those that have made a step."""
        self._skipped: dict[WrapperKey, tuple[str, tuple[int, ...]]] = {}
        self._last_skips: dict[WrapperKey, list[_Skip]] = {}
        self._latest_sites: dict[tuple[WrapperKey, int], Site] = {}
        """Where each rank made an optimizer step last."""
        self._latest_parameters: dict[Wrapper, Sequence[Named]] = {}
        """Kept until the rank returns, as by then its modules may be gone."""
        self._starts: dict[Wrapper, tuple[str, ...]] = {}
        """What the parameters were when the step began."""
        self._ends: dict[WrapperKey, Comparison] = {}
        """What ranks that returned left."""
        self._findings: dict[tuple[WrapperKey, Code], Finding] = {}
        self._returned: set[int] = set()
        self._has_run: set[Wrapper] = set()
        """Those whose inner module has run, through the wrapper or past it, so that buffers may have changed."""
        self._has_trained: set[WrapperKey] = set()
        """Those that a training forward went through."""
        wrappers.observers.append(self)

    # --- what happens -------------------------------------------------------------------------------------------------

    def module_runs(self, module: Any, arguments: Any) -> None:
        """A module, any at all, begins its forward.

        The hook is torch's for all modules, as one of the inner module's own would be copied and pickled with it.
        """
        if module.training and torch.is_grad_enabled() and hasattr(type(module), PROGRESS):
            self._wrappers.of(module)  # which may have made no call yet; a copy that only evaluates never trains
        wrappers = self._wrappers.around(module)
        if not wrappers:
            return
        wrapper = next((each for each in wrappers if each.is_running), None)
        if wrapper is None:
            self._inner_runs(wrappers[-1], is_training=module.training)
        elif module.training and wrapper not in self._has_run and not syncs_buffers(wrapper.module):
            wrapper.look()
            moment = Moment(wrapper.number, 0, text="at the first forward")
            self._compare(wrapper, moment, buffers_in(wrapper, (None,)))
        self._has_run.update(wrappers)
        if wrapper is not None and module.training and torch.is_grad_enabled():
            self._has_trained.add(wrapper.key)

    def step_begins(self, wrapper: Wrapper) -> None:
        """A synchronising forward has begun, or another engine tells of one."""
        if wrapper.inner is not None:
            parameters = self._latest_parameters[wrapper] = parameters_in(wrapper)
            self._starts[wrapper] = fingerprint(each.tensor for each in parameters)

    def optimizer_step_done(self, rank: int, optimizer: Any) -> None:
        """A rank's optimizer has changed parameters."""
        for wrapper in self._wrappers.of_rank(rank):
            wrapper.look()
            if wrapper.inner is None or wrapper.is_joined:
                continue
            parameters = self._latest_parameters[wrapper] = parameters_in(wrapper)
            own = parameters_of(optimizer)
            position = next((position for position, each in enumerate(parameters) if id(each.tensor) in own), None)
            if position is None:
                continue
            step, count = self._optimizer_steps.get((wrapper, position), (0, 0))
            count = count + 1 if step == wrapper.step else 1
            self._optimizer_steps[wrapper, position] = (wrapper.step, count)
            tensors = [*self._comparable(wrapper, optimizer, own, parameters), *state_of(parameters, optimizer)]
            tensors += buffers_in(wrapper, (None, "after") if syncs_buffers_last(wrapper.module) else ("after",))
            start = self._starts.get(wrapper, ())
            inputs = StepInputs(start, fingerprint(gradients_of(parameters, own)))
            self._compare(wrapper, Moment(wrapper.number, wrapper.step, count, optimizer=position), tensors, inputs)

    def rank_returned(self, rank: int) -> None:
        """A rank's program returned."""
        self._returned.add(rank)
        for wrapper in self._wrappers.of_rank(rank):
            parameters = self._latest_parameters.pop(wrapper, None)
            if parameters is not None:
                self._ends.setdefault(wrapper.key, Comparison()).add(
                    rank, parameters, site=NOWHERE, tolerance=self._tolerance
                )

    def findings(self) -> Sequence[Finding]:
        """What was found: for each wrapper the first divergence of parameters and of buffers."""
        for key, comparisons in self._open.items():
            for moment in sorted(comparisons):
                self._judge(key, moment, comparisons[moment])
        for key, skips in self._last_skips.items():
            for moment, skipper_sites, other_sites in skips:
                if self._end_apart(key, skipper_sites, other_sites):
                    code = Code.DIVERGENCE_PARAMETERS
                    self._findings.setdefault((key, code), skipped_step(moment, skipper_sites, other_sites))
        return tuple(self._findings.values())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _inner_runs(self, wrapper: Wrapper, *, is_training: bool) -> None:
        """The inner module runs past the wrapper."""
        wrapper.look()
        if not is_training and not wrapper.is_joined:
            moment = Moment(wrapper.number, wrapper.step, text="in an evaluation of the inner module")
            self._compare(wrapper, moment, buffers_in(wrapper, (None, "before", "after")))

    def _comparable(
        self, wrapper: Wrapper, optimizer: Any, own: Container[int], parameters: Sequence[Named]
    ) -> list[Named]:
        """What may be compared after an optimizer's step: all but what other optimizers change."""
        optimizers = self._optimizers.setdefault(wrapper, WeakSet())
        optimizers.add(optimizer)
        others = {each for other in optimizers if other is not optimizer for each in parameters_of(other)}
        return [
            each._replace(is_optional=id(each.tensor) not in own)
            for each in parameters
            if id(each.tensor) in own or id(each.tensor) not in others
        ]

    def _compare(
        self, wrapper: Wrapper, moment: Moment, tensors: Sequence[Named], inputs: StepInputs | None = None
    ) -> None:
        if not tensors:
            return
        comparisons = self._open.setdefault(wrapper.key, {})
        comparison = comparisons.setdefault(moment, Comparison())
        if wrapper.rank in comparison.ranks:
            return
        site = site_here()
        comparison.add(wrapper.rank, tensors, site=site, tolerance=self._tolerance)
        if inputs is not None:
            comparison.inputs[wrapper.rank] = inputs
            self._latest_sites[wrapper.key, wrapper.rank] = site
            comparison.unreduced = comparison.unreduced or wrapper.unreduced_bucket
            comparison.is_late |= wrapper.has_late_gradients
            comparison.unwaited = comparison.unwaited or next(iter(self._unwaited(wrapper.rank)), None)
        if self._is_complete(wrapper, comparison):
            self._close_until(wrapper.key, moment)

    def _is_complete(self, wrapper: Wrapper, comparison: Comparison) -> bool:
        """True once every rank is there that can still come.

        In a large world not every arrival is worth a look at all the others; what is missed, a later moment closes.
        """
        here, size = comparison.ranks, int(wrapper.module.process_group.size())
        if len(here) < size and len(here) % max(1, size // _LOOKS):
            return False
        gone = sum(
            (peer.is_joined or peer.rank in self._returned) and peer.rank not in here
            for peer in self._wrappers.peers(wrapper.key)
        )
        return len(here) + gone >= size

    def _close_until(self, key: WrapperKey, last: Moment) -> None:
        comparisons = self._open[key]
        for moment in sorted(moment for moment in comparisons if moment.is_over_by(last)):
            self._judge(key, moment, comparisons.pop(moment))

    def _judge(self, key: WrapperKey, moment: Moment, comparison: Comparison) -> None:
        groups = comparison.groups
        missing = sorted(
            peer.rank
            for peer in self._wrappers.peers(key)
            if moment.optimizer_step and peer.rank not in comparison.ranks and self._went_past(peer, moment)
        )
        if missing and key not in self._skipped:
            self._skipped[key] = (skip_text(moment, missing), tuple(missing))
        for other in groups[1:]:
            difference = first_difference(groups[0].tensors, list(other.tensors.values()), self._tolerance)
            if difference is not None and (key, difference.code) not in self._findings:
                self._findings[key, difference.code] = self._finding(key, moment, difference, comparison)
            break
        self._find_last_skip(key, moment, comparison)

    def _finding(self, key: WrapperKey, moment: Moment, difference: Named, comparison: Comparison) -> Finding:
        groups, sites = comparison.groups, comparison.sites
        names = [[each.name for each in group.tensors.values() if not each.is_optional] for group in groups]
        name, position = difference.name, first_position(names)
        if position is not None:
            sides = [
                Side(tuple(group.ranks), own[position] if position < len(own) else "none")
                for group, own in zip(groups, names, strict=True)
            ]
            is_order = len({tuple(sorted(own)) for own in names}) == 1
            known = Circumstances(is_order=is_order, has_run=key in self._has_trained)
            return divergence(difference.code, moment, f"name of tensor {position}", sides, sites=sites, known=known)
        index = first_index([group.tensors[name].tensor for group in groups if name in group.tensors])
        sides = [Side(tuple(group.ranks), value_at(group.tensors.get(name), index)) for group in groups]
        skipped, skippers = self._skipped.get(key, ("", ()))
        call = comparison.unwaited
        known = Circumstances(
            is_reduced=difference.is_state or self._wrappers.peers(key)[0].is_reduced(name),
            unreduced=comparison.unreduced,
            skipped=skipped,
            skippers=skippers,
            has_run=key in self._has_trained,
            is_late=comparison.is_late,
            apart=comparison.apart,
            unwaited=f"{call.operation} #{call.sequence} ({call.site})" if call else "",
        )
        return divergence(
            difference.code,
            moment,
            name,
            sides,
            sites=sites,
            index=str(list(index)) if index else "",
            known=known,
        )

    def _went_past(self, peer: Wrapper, moment: Moment) -> bool:
        """True if a rank was at this step without joining, and has gone on."""
        return peer.step > moment.step and peer.aligned_step < moment.step and not peer.is_joined

    def _find_last_skip(self, key: WrapperKey, moment: Moment, comparison: Comparison) -> None:
        skippers = sorted(
            peer.rank
            for peer in self._wrappers.peers(key)
            if peer.rank in self._returned
            and peer.rank not in comparison.ranks
            and peer.step == moment.step > peer.aligned_step
        )
        if skippers and moment.optimizer_step and moment.step and comparison.ranks:
            self._last_skips.setdefault(key, []).append(
                _Skip(
                    moment,
                    {rank: self._latest_sites.get((key, rank), NOWHERE) for rank in skippers},
                    dict(sorted(comparison.sites.items())),
                )
            )

    def _end_apart(self, key: WrapperKey, skippers: Iterable[int], others: Iterable[int]) -> bool:
        """True if a rank that skipped the last step was left with parameters unlike those of one that made it.

        They are equal if somebody made them so by hand: by a broadcast, or by loading the state from before.
        """
        groups = self._ends[key].groups if key in self._ends else []
        sides = [
            [index for index, group in enumerate(groups) if set(ranks) & set(group.ranks)]
            for ranks in (skippers, others)
        ]
        return any(one != other for one in sides[0] for other in sides[1])
