"""Divergence as findings: replicas of one model that should be equal, and are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from simulator.calls import NOWHERE, Site
from simulator.diagnosis.advice import Cause
from simulator.diagnosis.explain import rank_list, table
from simulator.verdict import Code, Finding


class Side(NamedTuple):
    """Ranks that agree with each other."""

    ranks: tuple[int, ...]
    value: str
    """What they have where the sides differ first."""


class Moment(NamedTuple):
    """When replicas were compared."""

    wrapper: int
    step: int
    """The wrapper's latest synchronising forward; 0 before the first."""
    optimizer_step: int = 0
    """Which optimizer step since that forward; 0 if the moment is no optimizer step."""
    text: str = ""
    """What the moment is, if it is no optimizer step."""
    optimizer: int = 0
    """Which optimizer of the wrapper; each counts its own steps."""

    def is_over_by(self, other: Moment) -> bool:
        """True if no rank that has come to `other` can come to this one any more."""
        if self.step != other.step or self == other:
            return self.step <= other.step
        if self.text or other.text or self.optimizer != other.optimizer:
            return False
        return self.optimizer_step < other.optimizer_step

    def __str__(self) -> str:
        where = f"step {self.step} of DDP #{self.wrapper}" if self.step else f"DDP #{self.wrapper} was made"
        if self.text:
            return f"{self.text} after {where}"
        which = f"optimizer step {self.optimizer_step}" if self.optimizer_step > 1 else "the optimizer step"
        return f"after {which} that followed {where}" if self.step else f"after {which} since {where}"


def divergence(
    code: Code,
    moment: Moment,
    name: str,
    sides: Sequence[Side],
    *,
    sites: Mapping[int, Site],
    is_reduced: bool = True,
    unreduced: str = "",
    skipped: str = "",
    skippers: tuple[int, ...] = (),
    place: str = "",
) -> Finding:
    """The finding for replicas that differ first in `name`.

    `sites` are the lines that the ranks were compared at, and `place` is where in the tensor. `is_reduced` is False for
    a parameter that is in no bucket, and `unreduced` names a bucket that was not reduced in this step; `skipped` tells
    of ranks (`skippers`) that left out an optimizer step.
    """
    culprits = skippers or minority(sides)
    summary = f"{name}{place} differs between {' and '.join(rank_list(side.ranks) for side in sides)} {moment}"
    rows = [(rank, f"{name}{place} = {side.value}", _where(sites[rank]), "") for side in sides for rank in side.ranks]
    advice = _advise(code, moment, name, is_reduced, unreduced, skipped)
    lines = [f"DIVERGENCE  {code}  {moment}", *table(rows), *advice]
    return Finding(code, culprits, summary, "\n".join(lines), _known([sites[rank] for rank in _first(culprits, sites)]))


def skipped_step(moment: Moment, skippers: Mapping[int, Site], others: Mapping[int, Site]) -> Finding:
    """The finding for ranks that left out the last optimizer step, so that nothing is left to compare them with.

    `skippers` and `others` have the lines of the last optimizer steps that they did make, if they made one.
    """
    text = f"{rank_list(skippers)} made no optimizer step {_after(moment)}, and {rank_list(others)} did"
    rows = [
        (rank, "skipped it", f"last step at {site}" if site != NOWHERE else "", "") for rank, site in skippers.items()
    ]
    rows += [(rank, "made it", _where(site), "") for rank, site in others.items()]
    lines = [
        f"DIVERGENCE  {Code.DIVERGENCE_PARAMETERS}",
        f"  {text}",
        *table(rows),
        *Cause.STEP_SKIPPED.lines(fact=text),
    ]
    sites = _known([*skippers.values(), *others.values()])
    return Finding(Code.DIVERGENCE_PARAMETERS, tuple(skippers), text, "\n".join(lines), sites)


def skip_text(moment: Moment, skippers: Sequence[int]) -> str:
    """What tells that ranks left out an optimizer step."""
    return f"{rank_list(skippers)} made no optimizer step {_after(moment)}, and the others did"


def minority(sides: Sequence[Side]) -> tuple[int, ...]:
    """The ranks outside the largest side; all of them if no side is the largest."""
    sizes = sorted((len(side.ranks) for side in sides), reverse=True)
    tie = len(sizes) > 1 and sizes[0] == sizes[1]
    return tuple(sorted(rank for side in sides if tie or len(side.ranks) < sizes[0] for rank in side.ranks))


def _where(site: Site) -> str:
    return "" if site == NOWHERE else str(site)


def _first(culprits: Collection[int], ranks: Iterable[int]) -> list[int]:
    return sorted(ranks, key=lambda rank: (rank not in culprits, rank))


def _known(sites: Iterable[Site]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys([site for site in sites if site != NOWHERE]))


def _after(moment: Moment) -> str:
    return f"after step {moment.step} of DDP #{moment.wrapper}"


def _advise(code: Code, moment: Moment, name: str, is_reduced: bool, unreduced: str, skipped: str) -> list[str]:
    if code is Code.DIVERGENCE_BUFFERS:
        return _advise_buffers(moment).lines()
    if skipped:
        return Cause.STEP_SKIPPED.lines(fact=skipped)
    if moment.step == 0:
        return Cause.INNER_MODULE_TRAINED.lines()
    if not is_reduced:
        return Cause.NOT_IN_A_BUCKET.lines(name=name)
    if moment.optimizer_step > 1:
        return Cause.STEP_WITHOUT_SYNCHRONISATION.lines()
    if unreduced:
        return Cause.BUCKET_NOT_REDUCED.lines(name=unreduced)
    return Cause.CHANGED_ALONE.lines()


def _advise_buffers(moment: Moment) -> Cause:
    if "evaluation" in moment.text:
        return Cause.BUFFERS_IN_EVALUATION
    return Cause.BUFFER_HOOK_DIFFERS if moment.optimizer_step else Cause.BUFFERS_NOT_SYNCHRONISED
