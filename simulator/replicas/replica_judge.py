"""Compares the samples that ranks took of their replicas: where they differ, and why.

The first rank's tensors are copied, the other ranks' tensors are compared with the copy, and the copy is released once
all ranks that can have sent theirs.

Note [Local SGD]. Ranks may make different steps and average the parameters every few steps. So the finding of a
difference is withdrawn if the parameters are equal again and the program has since passed as many elements to its own
calls as differed. A difference that is left at the end counts if it lasted longer than each one before an average.

Note [Last word]. At a moment that is not an optimizer step (simulator/diagnosis/replica_divergence.py,
`ComparisonEvent`) the program may be about to repair a difference, by a broadcast or by loading a state. Such a
difference is a finding only if it was there at the last of these moments, and if optimizer steps had no finding.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ddpsim.simulator.attribution.wrapper import WrapperKey
from ddpsim.simulator.calls import NOWHERE, Site
from ddpsim.simulator.diagnosis import replica_divergence
from ddpsim.simulator.diagnosis.explain import shorten_list
from ddpsim.simulator.diagnosis.replica_divergence import (
    ComparisonEvent,
    ComparisonPoint,
    DivergenceCircumstances,
    EqualRanks,
)
from ddpsim.simulator.model_tensors import first_different_index, local_part
from ddpsim.simulator.replicas import replica_comparison, replica_tensors
from ddpsim.simulator.replicas.replica_comparison import ReplicaComparison
from ddpsim.simulator.replicas.replica_tensors import ReplicaSample, ReplicaTensor, WrapperProgress
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import join_names, rank_list

_CHECKS = 64
"""How often per comparison it is checked whether all ranks have sent their samples."""


class _SkippedStep(NamedTuple):
    """The last optimizer step, which some ranks made and others left out."""

    moment: ComparisonPoint
    skipper_sites: dict[int, Site]
    """By rank that left the step out, the program line of the rank's own last optimizer step."""
    other_sites: dict[int, Site]


class ReplicaJudge:
    """Compares the replicas of all ranks in one execution, and makes the findings (errors)."""

    def __init__(self, *, now: Callable[[], int] = lambda: 0) -> None:
        """`now` returns the number of events of the execution so far."""
        self._now = now
        self._progress: dict[WrapperKey, dict[int, WrapperProgress]] = {}
        self._open: dict[WrapperKey, dict[ComparisonPoint, ReplicaComparison]] = {}
        self._skipped: dict[WrapperKey, tuple[str, tuple[int, ...]]] = {}
        self._last_skips: dict[WrapperKey, list[_SkippedStep]] = {}
        self._sites: dict[tuple[WrapperKey, int], Site] = {}
        """By wrapper and rank, the program line at which the rank's replica was last compared."""
        self._latest_sites: dict[tuple[WrapperKey, int], Site] = {}
        """By wrapper and rank, the program line of the rank's last optimizer step."""
        self.beside = 0
        """How many parameters that optimizers step on a rank are in none of its DDP models."""
        self._optimizers: dict[WrapperKey, dict[int, set[int]]] = {}
        """By wrapper and rank, the numbers of the optimizers that have stepped. Ranks may divide the parameters."""
        self._ends: dict[WrapperKey, ReplicaComparison] = {}
        """By wrapper, the final parameters of the ranks that returned."""
        self._ends_by_hand: dict[WrapperKey, ReplicaComparison] = {}
        """By group, the final values of the parameters whose gradients the program reduces in it."""
        self._starts: dict[WrapperKey, tuple[str, ...]] = {}
        """By wrapper, the fingerprint of the parameters at the beginning of the first step."""
        self._sizes: dict[WrapperKey, int] = {}
        self._findings: dict[tuple[WrapperKey, Code], Finding] = {}
        self._persistent = PersistentDivergences(self._findings)
        self.compared = Counter[str]()
        """By process group, the number of comparisons between two or more ranks."""
        self._returned: set[int] = set()
        self._has_trained: set[WrapperKey] = set()

    def process_report(self, fact: replica_tensors.ReplicaFact) -> None:
        """Handle a report about replicas that a rank has sent."""
        if isinstance(fact, WrapperProgress):
            self._progress.setdefault(fact.key, {})[fact.rank] = fact
        elif isinstance(fact, ReplicaSample):
            self._take_sample(fact)
        else:
            self._take_final_parameters(fact)

    def _take_sample(self, sample: ReplicaSample) -> None:
        if sample.has_trained:
            self._has_trained.add(sample.key)
        self._sizes[sample.key] = sample.size
        if sample.site is not None:
            self._sites[sample.key, sample.rank] = sample.site
        comparison = self._open.setdefault(sample.key, {}).setdefault(sample.moment, ReplicaComparison())
        if sample.rank in comparison.compared_ranks:
            return
        tensors = sample.tensors
        by_hand = sample.moment.occasion in (ComparisonEvent.REDUCED, ComparisonEvent.AVERAGED)
        if by_hand and comparison.groups:
            tensors = _with_names_of_other_rank(comparison.groups[0].tensors, tensors)
        site, passed = self._sites.get((sample.key, sample.rank), NOWHERE), sample.communicated
        comparison.add_rank(sample.rank, tensors, site=site, communicated=passed, in_any_order=by_hand)
        if sample.start:
            self._starts.setdefault(sample.key, sample.start)
            self._ends_by_hand.setdefault(sample.key, ReplicaComparison()).add_rank(
                sample.rank, tensors, site=site, communicated=passed, in_any_order=True
            )
        if sample.inputs is not None:
            self._starts.setdefault(sample.key, sample.inputs.start)
            comparison.steps.append(sample._replace(tensors=()))
            self._latest_sites[sample.key, sample.rank] = self._sites[sample.key, sample.rank]
            self._optimizers.setdefault(sample.key, {}).setdefault(sample.rank, set()).add(sample.moment.optimizer)
        if self._is_complete(sample, comparison):
            self._judge_until(sample.key, sample.moment)

    def _take_final_parameters(self, final: replica_tensors.FinalParameters) -> None:
        self._returned.add(final.rank)
        self.beside = max(self.beside, final.beside)
        for key, parameters in final.left:
            end = self._ends.setdefault(key, ReplicaComparison())
            site = self._latest_sites.get((key, final.rank), NOWHERE)
            end.add_rank(final.rank, parameters, site=site, communicated=final.communicated)

    def _progress_on_ranks(self, key: WrapperKey) -> Sequence[WrapperProgress]:
        """Return how far a wrapper is on each rank that has constructed it so far."""
        return tuple(self._progress.get(key, {}).values())

    def findings(self) -> Sequence[Finding]:
        """Return the findings (errors): for each wrapper, the first difference in parameters and in buffers."""
        for key, comparisons in self._open.items():
            for moment in sorted(comparisons):
                self._judge_comparison(key, moment, comparisons[moment])
        for key, skips in self._last_skips.items():
            for moment, skipper_sites, other_sites in skips:
                if self._ended_with_different_parameters(key, skipper_sites, other_sites):
                    finding = replica_divergence.skipped_step_finding(moment, skipper_sites, other_sites)
                    self._findings.setdefault((key, Code.DIVERGENCE_PARAMETERS), finding)
        for key, end in self._ends.items():
            if len(end.compared_ranks) == self._sizes.get(key):
                last = max((peer.step for peer in self._progress_on_ranks(key)), default=0)
                self._judge_comparison(key, replica_divergence.point_of_program_end(key[1], last), end)
        found = [
            finding
            for (key, code), finding in self._findings.items()
            if code is not Code.DIVERGENCE_PARAMETERS or not self._persistent.is_average_due(key)
        ]
        return (*found, *self._persistent.remaining_findings())

    def groups_apart(self) -> Iterator[str]:
        """Yield texts on wrappers of several groups that began with equal parameters and ended with different ones: a
        wrapper that had all their ranks would have kept them equal, and none of them compares with another."""
        alike: dict[object, list[WrapperKey]] = {}
        ends = {**self._ends, **self._ends_by_hand}
        for key, end in ends.items():
            start = self._starts.get(key)
            if start and len(start) == len(end.groups[0].tensors):
                dimension = "" if key in self._ends_by_hand else _dimension_of_shards(key[0])
                alike.setdefault((key[1], dimension or start), []).append(key)
        for keys in alike.values():
            tensors = [ends[key].groups[0].tensors for key in keys]
            values = [
                dict(zip(each, zip(self._starts[key], _fingerprints(each), strict=True), strict=True))
                for key, each in zip(keys, tensors, strict=True)
            ]
            common = [name for name in values[0] if all(name in own for own in values)]
            equal = [name for name in common if len({own[name][0] for own in values}) == 1]
            if apart := [name for name in equal if len({own[name][1] for own in values}) > 1]:
                what = "models" if len(equal) == len(values[0]) else join_names(shorten_list(apart))
                ranks = sorted((sorted(ends[key].compared_ranks), key[0]) for key in keys)
                groups = [f'"{name}" ({rank_list(own)})' for own, name in ranks]
                yield f"{what} of groups {join_names(shorten_list(groups))}, which began equal and ended different"

    def not_finite(self) -> Iterator[str]:
        """Yield texts on models that ended with NaN or infinity, which replicas may share."""
        for (group, number), end in (*self._ends.items(), *self._ends_by_hand.items()):
            tensors = end.groups[0].tensors.items()
            if names := [name for name, each in tensors if not local_part(each.tensor).isfinite().all()]:
                model = f"DDP #{number}" if number >= 0 else f'the model of group "{group}"'
                yield f"NaN or infinity at the end in {join_names(shorten_list(names))} of {model}"

    def _is_complete(self, sample: ReplicaSample, comparison: ReplicaComparison) -> bool:
        """Return whether all ranks that can still send a sample have sent it. In a large world, this is not checked at
        every arrival, for speed."""
        here, size = comparison.compared_ranks, sample.size
        if len(here) < size and len(here) % max(1, size // _CHECKS):
            return False
        gone = sum(
            (peer.is_joined or peer.rank in self._returned) and peer.rank not in here
            for peer in self._progress_on_ranks(sample.key)
        )
        return len(here) + gone >= size

    def _judge_until(self, key: WrapperKey, last: ComparisonPoint) -> None:
        comparisons = self._open[key]
        for moment in sorted(moment for moment in comparisons if moment.is_passed_at(last)):
            self._judge_comparison(key, moment, comparisons.pop(moment))

    def _judge_comparison(self, key: WrapperKey, moment: ComparisonPoint, comparison: ReplicaComparison) -> None:
        groups = comparison.groups
        made = [each.forwards for each in comparison.steps]
        if any(made) and (len(made) < self._sizes[key] or len(set(made)) > 1):
            return  # a step of the other ranks began or ended at another forward: neither skipped nor comparable
        missing = sorted(
            peer.rank
            for peer in self._progress_on_ranks(key)
            if moment.optimizer_step
            and peer.rank not in comparison.compared_ranks
            and peer.step > moment.step > peer.aligned_step
            and not peer.is_joined
            and not self._has_own_optimizer(key, peer.rank, comparison)
        )
        if missing and key not in self._skipped:
            self._skipped[key] = (replica_divergence.skipped_step_text(moment, missing), tuple(missing))
        self.compared[key[0]] += len(comparison.compared_ranks) > 1
        difference = None
        if len(groups) > 1:
            first, second = groups[0].tensors, list(groups[1].tensors.values())
            difference = replica_comparison.first_different_tensor(first, second)
        if difference is None:
            self._note_agreement(key, moment, comparison)
        else:
            self._note_difference(key, moment, comparison, difference)
        self._note_skipped_last_step(key, moment, comparison)

    def _note_agreement(self, key: WrapperKey, moment: ComparisonPoint, comparison: ReplicaComparison) -> None:
        if len(comparison.compared_ranks) < 2 or moment.occasion in (ComparisonEvent.MADE, ComparisonEvent.BACKWARD):
            return
        if any(each.code is Code.DIVERGENCE_PARAMETERS for each in comparison.groups[0].tensors.values()):
            self._persistent.note_agreement(key, Code.DIVERGENCE_PARAMETERS)
            if self._persistent.note_parameters_equal(key, comparison.communicated):
                self._findings.pop((key, Code.DIVERGENCE_PARAMETERS), None)
            if moment.optimizer_step:
                self._persistent.note_agreement(key, Code.DIVERGENCE_GRADIENTS)

    def _note_difference(
        self, key: WrapperKey, moment: ComparisonPoint, comparison: ReplicaComparison, difference: ReplicaTensor
    ) -> None:
        first, second = comparison.groups[0].tensors, comparison.groups[1].tensors
        if difference.code is Code.DIVERGENCE_PARAMETERS and not difference.is_state:
            elements = replica_comparison.count_differing_elements(first, second)
            self._persistent.note_parameters_differ(key, elements, comparison.communicated)
        finding = partial(self._divergence_finding, key, moment, difference, comparison)
        if moment.occasion is not ComparisonEvent.USUAL:
            self._persistent.note_difference(key, replace(finding(), event=self._now() - 1))
        elif (key, difference.code) not in self._findings:
            self._findings[key, difference.code] = replace(finding(), event=self._now() - 1)

    def _divergence_finding(
        self, key: WrapperKey, moment: ComparisonPoint, difference: ReplicaTensor, comparison: ReplicaComparison
    ) -> Finding:
        groups, sites = comparison.groups, comparison.sites
        names = [[each.name for each in group.tensors.values() if not each.is_optional] for group in groups]
        name, position = difference.name, replica_comparison.first_different_position(names)
        if position is not None:
            sides = [
                EqualRanks(tuple(group.ranks), own[position] if position < len(own) else "none")
                for group, own in zip(groups, names, strict=True)
            ]
            is_order = len({tuple(sorted(own)) for own in names}) == 1
            known = DivergenceCircumstances(is_order=is_order, has_run=key in self._has_trained)
            name = f"name of tensor {position}"
            return replica_divergence.divergence_finding(difference.code, moment, name, sides, sites=sites, known=known)
        named = [group.tensors.get(name) for group in groups]
        own, *others = [each.tensor for each in named if each is not None]
        index = next(filter(None, (first_different_index(own, other) for other in others)), ())
        texts = [replica_comparison.element_text(each, index) for each in named]
        sides = [EqualRanks(tuple(group.ranks), text) for group, text in zip(groups, texts, strict=True)]
        skipped, skippers = self._skipped.get(key, ("", ()))
        steps = comparison.steps
        call = next((each.unwaited for each in steps if each.unwaited is not None), None)
        known = DivergenceCircumstances(
            is_reduced=difference.is_state or all(peer.is_reduced(name) for peer in self._progress_on_ranks(key)[:1]),
            unreduced=next((each.unreduced for each in steps if each.unreduced), ""),
            skipped=skipped,
            skippers=skippers,
            is_divided=any(self._has_own_optimizer(key, rank, comparison) for rank in self._optimizers.get(key, ())),
            has_run=key in self._has_trained,
            is_late=any(each.is_late for each in steps),
            apart=comparison.first_different_input,
            unwaited=f"{call.operation} #{call.sequence} ({call.site})" if call else "",
        )
        where = str(list(index)) if index else ""
        code = difference.code
        return replica_divergence.divergence_finding(code, moment, name, sides, sites=sites, index=where, known=known)

    def _has_own_optimizer(self, key: WrapperKey, rank: int, comparison: ReplicaComparison) -> bool:
        """Return whether a rank steps an optimizer that another compared rank lacks: they step unlike parameters."""
        of_ranks = self._optimizers.get(key, {})
        own = of_ranks.get(rank, set())
        return any(not own <= of_ranks.get(other, own) for other in comparison.compared_ranks)

    def _note_skipped_last_step(self, key: WrapperKey, moment: ComparisonPoint, comparison: ReplicaComparison) -> None:
        skippers = sorted(
            peer.rank
            for peer in self._progress_on_ranks(key)
            if peer.rank in self._returned
            and peer.rank not in comparison.compared_ranks
            and peer.step == moment.step > peer.aligned_step
            and not self._has_own_optimizer(key, peer.rank, comparison)
        )
        if skippers and moment.optimizer_step and moment.step and comparison.compared_ranks:
            sites = {rank: self._latest_sites.get((key, rank), NOWHERE) for rank in skippers}
            skipped = _SkippedStep(moment, sites, dict(sorted(comparison.sites.items())))
            self._last_skips.setdefault(key, []).append(skipped)

    def _ended_with_different_parameters(self, key: WrapperKey, skippers: Iterable[int], others: Iterable[int]) -> bool:
        """Return whether a rank that left out the last step ended with other parameters than a rank that made it. A
        broadcast, or loading a state, may have made the parameters equal."""
        groups = self._ends[key].groups if key in self._ends else []
        group_of = {rank: index for index, group in enumerate(groups) for rank in group.ranks}
        sides = [{group_of[rank] for rank in ranks if rank in group_of} for ranks in (skippers, others)]
        return any(one != other for one in sides[0] for other in sides[1])


_OF_STAGES = frozenset({"pp", "pipe", "pipeline", "stage"})
"""Names of the dimensions of meshes along which ranks hold other layers."""


def _dimension_of_shards(group: str) -> str:
    """Return the dimension of a mesh's group whose ranks hold shards of one model, and replicas of the rest of it; ""
    for a group of no mesh, and one of a pipeline's stage."""
    dimension, _, others = group.partition(" (")
    names = {each.split()[0] for each in others.rstrip(")").split(", ") if each}
    return "" if not names or names & _OF_STAGES else dimension


def _fingerprints(tensors: Mapping[str, ReplicaTensor]) -> tuple[str, ...]:
    return replica_tensors.fingerprint(each.tensor for each in tensors.values())


def _with_names_of_other_rank(first: Iterable[str], tensors: Sequence[ReplicaTensor]) -> Sequence[ReplicaTensor]:
    """Return the tensors under the names that another rank has at the same positions, if both have equally many."""
    names = list(first)
    if len(names) != len(tensors):
        return tensors
    return [each._replace(name=name) for name, each in zip(names, tensors, strict=True)]


_Key = tuple[WrapperKey, Code]


@dataclass(slots=True)
class _DivergencePeriod:
    """A period in which parameters differ between ranks, until they are equal again."""

    elements: int
    """The number of elements that differed at the beginning."""
    communicated: int
    """The number of elements that the program had passed to its own calls at the beginning."""
    moments: int = 1
    """The number of comparisons in which the parameters differed."""


class PersistentDivergences:
    """The differences between the replicas of one execution that were not repaired later."""

    def __init__(self, found: Mapping[_Key, Finding]) -> None:
        """`found` are the findings (errors) of the comparisons after optimizer steps."""
        self._found = found
        self._divergences: dict[WrapperKey, _DivergencePeriod] = {}
        self._longest: dict[WrapperKey, int] = {}
        """The number of comparisons in the longest period of difference that the program ended by averaging."""
        self._later: dict[_Key, Finding] = {}

    def note_parameters_differ(self, key: WrapperKey, elements: int, communicated: int) -> None:
        """Record that the parameters differ between ranks."""
        divergence = self._divergences.get(key)
        if divergence is None:
            self._divergences[key] = _DivergencePeriod(elements, communicated)
        else:
            divergence.moments += 1

    def note_parameters_equal(self, key: WrapperKey, communicated: int) -> bool:
        """Record that all parameters are equal; return whether the program has averaged them since they differed."""
        divergence = self._divergences.get(key)
        if divergence is None or communicated - divergence.communicated < divergence.elements:
            return False
        del self._divergences[key]
        self._longest[key] = max(divergence.moments, self._longest.get(key, 0))
        return True

    def is_average_due(self, key: WrapperKey) -> bool:
        """Return whether the parameters have differed no longer than in an earlier period ended by averaging."""
        divergence = self._divergences.get(key)
        return divergence is not None and divergence.moments <= self._longest.get(key, 0)

    def note_difference(self, key: WrapperKey, finding: Finding) -> None:
        """Record a difference that was found at another time than after an optimizer step."""
        self._later.setdefault((key, finding.code), finding)

    def note_agreement(self, key: WrapperKey, code: Code) -> None:
        """Record that the replicas are equal again."""
        self._later.pop((key, code), None)

    def remaining_findings(self) -> list[Finding]:
        """Return the findings (errors) not made after optimizer steps; parameters come before gradients."""
        parameters_found = {key for key, code in self._found if code is not Code.DIVERGENCE_BUFFERS}
        later = [key for key, code in self._later if code is Code.DIVERGENCE_PARAMETERS]
        parameters_found |= {key for key in later if not self.is_average_due(key)}
        return [
            finding
            for (key, code), finding in self._later.items()
            if (key, code) not in self._found
            and not (code is Code.DIVERGENCE_GRADIENTS and key in parameters_found)
            and not (code is Code.DIVERGENCE_PARAMETERS and self.is_average_due(key))
        ]
