"""Divergence as findings: replicas of one model that should be equal, and are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from simulator.calls import NOWHERE, Site
from simulator.diagnosis.explain import indent, rank_list, table
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
    cause, remedy = _explain(code, moment, name, is_reduced, unreduced, skipped)
    lines = [f"DIVERGENCE  {code}  {moment}", *table(rows), indent("cause", cause), indent("try", remedy)]
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
        indent("cause", "the rank skipped the step by a rule of its own, so its parameters and optimizer lag behind"),
        indent("try", _SHARE_THE_DECISION),
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


_SHARE_THE_DECISION = "share the decision: all_reduce(MIN) a flag, and let all ranks step or skip together"


def _where(site: Site) -> str:
    return "" if site == NOWHERE else str(site)


def _first(culprits: Collection[int], ranks: Iterable[int]) -> list[int]:
    return sorted(ranks, key=lambda rank: (rank not in culprits, rank))


def _known(sites: Iterable[Site]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys([site for site in sites if site != NOWHERE]))


def _after(moment: Moment) -> str:
    return f"after step {moment.step} of DDP #{moment.wrapper}"


def _explain(code: Code, moment: Moment, name: str, is_reduced: bool, unreduced: str, skipped: str) -> tuple[str, str]:
    if code is Code.DIVERGENCE_BUFFERS:
        return _explain_buffers(moment)
    if skipped:
        return skipped, _SHARE_THE_DECISION
    if moment.step == 0:
        return (
            "no synchronising forward went through the wrapper, so nothing averaged the gradients",
            "call the wrapper, not its inner module, for the loss",
        )
    if not is_reduced:
        return (
            f"{name} is in no bucket: it required no gradient when the model was wrapped, or was replaced since",
            "wrap the model again after unfreezing or replacing parameters",
        )
    if moment.optimizer_step > 1:
        return (
            "no synchronising forward preceded this optimizer step, so each rank applied gradients of its own",
            "synchronise in the last micro-batch of every window, the short one at the end included",
        )
    if unreduced:
        return (
            f"{unreduced} was not reduced in this step, as some parameter in it got no gradient",
            "pass find_unused_parameters=True, or let every parameter take part in the loss",
        )
    return (
        "the replicas did not start from the same state, or a rank changed parameters, gradients or optimizer alone",
        "load state before wrapping, or on every rank; change gradients and learning rates on all ranks alike",
    )


def _explain_buffers(moment: Moment) -> tuple[str, str]:
    if "evaluation" in moment.text:
        return (
            "each rank updates its buffers in its own forward; only a forward through the wrapper makes them equal",
            "evaluate through the wrapper, or broadcast or average the buffers first",
        )
    if moment.optimizer_step:
        return "the buffer hook did not leave all ranks with the same values", "let the hook give every rank one result"
    return (
        "the buffers differed when training began, and nothing synchronises them",
        "broadcast them by hand, or pass forward_sync_buffers or broadcast_buffers",
    )
