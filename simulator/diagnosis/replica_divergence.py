"""Findings about replicas of one model that differ between ranks, or differ from training without DDP."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Phase, Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.explain import TableRow, format_table, ranks_outside_largest, summarized_finding
from ddpsim.simulator.joins import JoinSummary
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, rank_list


class EqualRanks(NamedTuple):
    """Ranks whose replicas are equal."""

    ranks: tuple[int, ...]
    value: str
    """The value that these ranks have at the first difference between the replicas."""


class ComparisonEvent(Enum):
    """The kind of event at which replicas are compared."""

    USUAL = "usual"
    """An optimizer step, an evaluation, or a first forward."""
    MADE = "made"
    BEGAN = "began"
    """A forward began, after a change that no optimizer step is known for."""
    BACKWARD = "backward"
    """A synchronised backward ended."""
    REDUCED = "reduced"
    """A forward began, after the program reduced a model's gradients itself, without a DDP wrapper."""
    UPDATED = "updated"
    """An optimizer stepped; DTensors that are replicated along a mesh dimension are compared."""
    BESIDE = "beside"
    """An optimizer stepped; parameters are compared along a data-parallel dimension without placements."""
    AVERAGED = "averaged"
    """The program averaged parameters itself."""
    ENDED = "ended"


class ComparisonPoint(NamedTuple):
    """The point in a training at which replicas were compared."""

    wrapper: int
    step: int
    """The number of the DDP wrapper's latest synchronising forward; 0 before the first."""
    optimizer_step: int = 0
    """The number of the optimizer step since that forward; 0 if this is no optimizer step."""
    text: str = ""
    """A description of the point, if it is no optimizer step."""
    optimizer: int = 0
    """The number of the optimizer among the DDP wrapper's optimizers; each counts its own steps."""
    occasion: ComparisonEvent = ComparisonEvent.USUAL

    def is_passed_at(self, other: "ComparisonPoint") -> bool:
        """Return True if a rank that has reached the point `other` can no longer reach this point."""
        if self.step != other.step or self == other:
            return self.step <= other.step
        if self.text or other.text or self.optimizer != other.optimizer:
            return False
        return self.optimizer_step < other.optimizer_step

    def __str__(self) -> str:
        if self.occasion is not ComparisonEvent.USUAL:
            return self.text
        where = f"step {self.step} of DDP #{self.wrapper}" if self.step else f"DDP #{self.wrapper} was made"
        if self.text:
            return f"{self.text} after {where}"
        which = f"optimizer step {self.optimizer_step}" if self.optimizer_step > 1 else "the optimizer step"
        return f"after {which} that followed {where}" if self.step else f"after {which} since {where}"


def construction_comparison_point(wrapper: int) -> ComparisonPoint:
    """Return the point at which a DDP wrapper was constructed."""
    return ComparisonPoint(wrapper, 0, text=f"when DDP #{wrapper} was made", occasion=ComparisonEvent.MADE)


def point_of_forward(wrapper: int, step: int, optimizer_steps: int) -> ComparisonPoint:
    """Return the point at which a forward began, after this many steps since the latest synchronising forward."""
    text = f"when a forward of DDP #{wrapper} began, after its step {step}"
    return ComparisonPoint(wrapper, step, optimizer_steps, text, occasion=ComparisonEvent.BEGAN)


def point_of_backward_end(wrapper: int, step: int, *, has_ended: bool = False) -> ComparisonPoint:
    """Return the point at which a synchronised backward ended, or the program after such a backward without a step."""
    backward = f"the backward of step {step} of DDP #{wrapper}"
    text = f"when the program had ended after {backward}" if has_ended else f"when {backward} had ended"
    return ComparisonPoint(wrapper, step, text=text, occasion=ComparisonEvent.BACKWARD)


def point_of_manual_reduction(group: str, sequence: int, *, has_ended: bool = False) -> ComparisonPoint:
    """Return the point after the program reduced gradients itself: the next forward's begin, or the program's end."""
    what = f'after all_reduce #{sequence} of gradients on group "{group}"'
    text = f"when the program had ended, {what}" if has_ended else f"when the first forward {what} began"
    return ComparisonPoint(-1, sequence, int(has_ended), text, occasion=ComparisonEvent.REDUCED)


def point_of_optimizer_step(
    group: str, step: int, *, is_beside: bool = False, has_ended: bool = False
) -> ComparisonPoint:
    """Return the point of an optimizer step on parameters that are replicated on a group's ranks."""
    text = f'{"at the end, " if has_ended else ""}after optimizer step {step} along group "{group}"'
    occasion = ComparisonEvent.BESIDE if is_beside else ComparisonEvent.UPDATED
    return ComparisonPoint(-2, step, int(has_ended), text, occasion=occasion)


def point_of_manual_average(group: str, sequence: int) -> ComparisonPoint:
    """Return the point after the program averaged parameters itself and trained no more."""
    text = f'after all_reduce #{sequence} of parameters on group "{group}"'
    return ComparisonPoint(-1, sequence, text=text, occasion=ComparisonEvent.AVERAGED)


def point_of_program_end(wrapper: int, step: int) -> ComparisonPoint:
    """Return the point at which the program returned."""
    text = f"when the program had ended, after step {step} of DDP #{wrapper}"
    return ComparisonPoint(wrapper, step, text=text, occasion=ComparisonEvent.ENDED)


class DivergenceCircumstances(NamedTuple):
    """Facts about replicas that differ, other than their values, that decide which cause is reported."""

    is_order: bool = False
    is_reduced: bool = True
    """False if the parameter that differs is in no bucket."""
    unreduced: str = ""
    """The bucket that was not reduced in this training step, and why, as text."""
    skipped: str = ""
    """Text on the ranks that omitted an optimizer step."""
    skippers: tuple[int, ...] = ()
    is_divided: bool = False
    """True if the optimizers of the ranks step unlike parameters."""
    has_run: bool = False
    """True if a training forward went through the DDP wrapper."""
    is_late: bool = False
    """True if gradients came after the step's reduction had ended."""
    apart: Advice[[]] = Cause.OPTIMIZER_DIFFERS
    """The cause, by what differed first: the parameters before the step, the gradients, or only the optimizer."""
    unwaited: str = ""
    """A call of the user's program for which a rank had not waited, as text."""


_CAUSES = {
    ComparisonEvent.BEGAN: Cause.CHANGED_BY_HAND,
    ComparisonEvent.UPDATED: Cause.REPLICATED_DTENSORS_DIFFER,
    ComparisonEvent.BESIDE: Cause.NOT_REDUCED_BESIDE,
    ComparisonEvent.REDUCED: Cause.APART_BY_HAND,
    ComparisonEvent.AVERAGED: Cause.AVERAGED_BY_HAND,
    ComparisonEvent.ENDED: Cause.CHANGED_LAST,
}


_NOT_REDUCED = (Cause.STEPPED_IN_BACKWARD, Cause.LAST_BACKWARD_LOCAL, Cause.NO_BACKWARD, Cause.GRADIENTS_UNSEEN)


def divergence_finding(
    code: Code,
    moment: ComparisonPoint,
    name: str,
    sides: Sequence[EqualRanks],
    *,
    sites: Mapping[int, Site],
    index: str = "",
    known: DivergenceCircumstances,
) -> Finding:
    """Return the finding for replicas that differ first in the tensor `name` at `index`.

    `sites` are, by rank, the lines of the program at which the replicas were compared.
    """
    culprits = known.skippers or ranks_outside_largest(side.ranks for side in sides)
    summary = f"{name}{index} differs {_differing_ranks_text(sides)} {moment}"
    values = [(rank, side.value) for side in sides for rank in side.ranks]
    rows = [TableRow(rank, f"{name}{index} = {value}", _site_text(sites[rank])) for rank, value in values]
    who = "some ranks" if len(culprits) == len(values) else rank_list(culprits)
    lines: list[str | LabelledLine] = [f"DIVERGENCE  {code}  {moment}", *format_table(rows)]
    lines += _advise_divergence(code, moment, name, who, known)
    culprits_first = sorted(sites, key=lambda rank: (rank not in culprits, rank))
    return Finding(code, culprits, summary, tuple(lines), _known_sites(sites[rank] for rank in culprits_first))


def _differing_ranks_text(sides: Sequence[EqualRanks]) -> str:
    """Name the ranks that differ, such as "between ranks 0-2 and rank 3", or "on all of ranks 0-3"."""
    if len(sides) > 2 and all(len(side.ranks) == 1 for side in sides):
        return f"on all of {rank_list(rank for side in sides for rank in side.ranks)}"
    *first, last = (rank_list(side.ranks) for side in sides)
    return f"between {', '.join(first)} and {last}"


def skipped_step_finding(moment: ComparisonPoint, skippers: Mapping[int, Site], others: Mapping[int, Site]) -> Finding:
    """Return the finding for ranks that omitted the last optimizer step, so there is no later step to compare.

    `skippers` and `others` have, by rank, the line of the last optimizer step that the rank made, if it made one.
    """
    text = skipped_step_text(moment, skippers, rank_list(others))
    rows = [TableRow(rank, "skipped it", _site_text(at) and f"last step at {at}") for rank, at in skippers.items()]
    rows += [TableRow(rank, "made it", _site_text(site)) for rank, site in others.items()]
    parts = format_table(rows), Cause.STEP_SKIPPED.lines(fact=text)
    sites = _known_sites([*skippers.values(), *others.values()])
    return summarized_finding(Code.DIVERGENCE_PARAMETERS, tuple(skippers), text, *parts, sites=sites)


NOTHING_COMPARED = (
    "no replicas were compared: a replica is known by DDP, FSDP2 or an all_reduce of its gradients, and no two ranks "
    "had one at the same moment"
)
"""The note for a run that should compare replicas, but found none to compare."""


def nothing_compared_finding(world_size: int) -> Finding:
    """Return the finding for a check of replicas that compared nothing."""
    summary = 'check="replicas" compared nothing: no two ranks had a replica of a model at the same moment'
    return summarized_finding(Code.UNCHECKED, tuple(range(world_size)), summary, Cause.NOTHING_COMPARED.lines())


def skipped_step_text(moment: ComparisonPoint, skippers: Iterable[int], others: str = "the others") -> str:
    """Return the text that ranks omitted an optimizer step."""
    where = f"after step {moment.step} of DDP #{moment.wrapper}"
    return f"{rank_list(skippers)} made no optimizer step {where}, and {others} did"


def _site_text(site: Site) -> str:
    return "" if site == NOWHERE else str(site)


def _known_sites(sites: Iterable[Site]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys(site for site in sites if site != NOWHERE))


def _advise_divergence(
    code: Code, moment: ComparisonPoint, name: str, who: str, known: DivergenceCircumstances
) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for replicas that differ between ranks."""
    if code is Code.DIVERGENCE_GRADIENTS:
        return Cause.GRADIENTS_DIFFER.lines()
    if code is Code.DIVERGENCE_BUFFERS:
        is_made = moment.occasion is ComparisonEvent.MADE
        return Cause.BUFFERS_IN_OTHER_ORDER.lines(who=who) if is_made else _advise_buffers(moment).lines()
    if known.skipped:
        return Cause.STEP_SKIPPED.lines(fact=known.skipped)
    if known.is_order or moment.occasion is ComparisonEvent.MADE:
        return Cause.PARAMETERS_IN_OTHER_ORDER.lines(who=who)
    if known.is_divided and moment.occasion in (ComparisonEvent.BEGAN, ComparisonEvent.ENDED):
        return Cause.STEPPED_BY_PARTS.lines(fact=name)
    is_unused = moment.step == 0 and not known.has_run
    if moment.occasion in _CAUSES and not (is_unused and moment.occasion is ComparisonEvent.ENDED):
        return _CAUSES[moment.occasion].lines()
    if is_unused:
        return Cause.INNER_MODULE_TRAINED.lines()
    if not known.is_reduced:
        return Cause.NOT_IN_A_BUCKET.lines(fact=name)
    if moment.optimizer_step > 1 or moment.step == 0:
        return Cause.STEP_WITHOUT_SYNCHRONISATION.lines()
    if known.apart in _NOT_REDUCED:
        return known.apart.lines()
    if known.unreduced:
        return Cause.BUCKET_NOT_REDUCED.lines(fact=known.unreduced)
    if known.is_late:
        return Cause.BACKWARD_AFTER_REDUCTION.lines()
    if known.unwaited:
        return Cause.READ_BEFORE_WAIT.lines(fact=known.unwaited)
    if known.apart is Cause.STARTED_APART and moment.step > 1:
        return Cause.CHANGED_BETWEEN_STEPS.lines()
    return known.apart.lines()


def _advise_buffers(moment: ComparisonPoint) -> Advice[[]]:
    if "evaluation" in moment.text:
        return Cause.BUFFERS_IN_EVALUATION
    return Cause.BUFFER_HOOK_DIFFERS if moment.optimizer_step else Cause.BUFFERS_NOT_SYNCHRONISED


class ReferenceDeviation(NamedTuple):
    """The first difference between ranks and training without DDP."""

    code: Code
    ranks: tuple[int, ...]
    world_size: int
    is_no_number: bool = False
    """True if a value is nan or infinite instead of a number."""
    factor: float | None = None
    """The factor between every differing element and the expected one; None if there is no common factor."""
    is_by_hand: bool = False
    """True if the program reduces gradients itself, without a wrapper."""


def advise_deviation(deviation: ReferenceDeviation, joins: Sequence[JoinSummary]) -> list[LabelledLine]:
    """Return the advice for a difference from training without DDP; `joins` are the run's `join()` blocks."""
    if deviation.is_no_number:
        return Cause.NO_NUMBER.lines()
    if deviation.factor is not None:
        return Cause.SCALED.lines(fact=_factor_text(deviation.factor, deviation.world_size))
    if len(deviation.ranks) < deviation.world_size:
        return Cause.OTHER_ON_SOME_RANKS.lines(who=rank_list(deviation.ranks))
    joined = [rank for joining in joins for rank in joining.ranks if rank.calls]
    phases = {phase for rank in joined for phase, _ in rank.shadowed}
    cause = _cause_in_join(deviation.code, phases) if joined else None
    if cause is not None:
        return cause.lines(rank_list({rank.rank for rank in joined}))
    if deviation.code is Code.DIVERGENCE_BUFFERS:
        return Cause.OTHER_COUNT.lines()
    return (Cause.REDUCED_BY_HAND if deviation.is_by_hand else Cause.OTHER_THAN_PLAIN_TRAINING).lines()


def _cause_in_join(code: Code, phases: set[str]) -> Advice[[str]] | None:
    """Return the cause of a difference that torch's join makes, by the DDP phases of the joined ranks' calls."""
    if code is Code.DIVERGENCE_BUFFERS:
        return Cause.JOINED_WITH_BUFFERS if Phase.BUFFERS.value in phases else None
    if Phase.USER.value in phases:
        return Cause.JOINED_STEPPED
    return Cause.JOINED_WITH_USED_MAP if Phase.USED_MAP.value in phases else Cause.JOINED_DIVISOR


def _factor_text(factor: float, world_size: int) -> str:
    known = {float(world_size): " (the world size)", 1.0 / world_size: " (1 / world size)"}
    return f"{factor:.4g}" + next((text for value, text in known.items() if abs(factor - value) < 1e-4 * value), "")
