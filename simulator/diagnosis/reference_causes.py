"""Picks the cause (from `advice/`) if ranks agree with each other, but differ from training without DDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Phase
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.joins import Joining
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import Line, rank_list


class Deviation(NamedTuple):
    """The first deviation of ranks from plain training."""

    code: Code
    ranks: tuple[int, ...]
    world_size: int
    is_no_number: bool = False
    """True if a value is nan or infinite instead of a number."""
    factor: float | None = None
    """The factor between every differing element and the expected one; None if there is no common factor."""
    is_by_hand: bool = False
    """True if the program reduces gradients itself, without a wrapper."""


def advise(deviation: Deviation, joins: Sequence[Joining]) -> list[Line]:
    """Return the cause and what to try; `joins` are the `join()` blocks of the run."""
    if deviation.is_no_number:
        return Cause.NO_NUMBER.lines()
    if deviation.factor is not None:
        return Cause.SCALED.lines(fact=_factor_text(deviation.factor, deviation.world_size))
    if len(deviation.ranks) < deviation.world_size:
        return Cause.OTHER_ON_SOME_RANKS.lines(who=rank_list(deviation.ranks))
    stood_by = [rank for joining in joins for rank in joining.ranks if rank.calls]
    phases = {phase for rank in stood_by for phase, _ in rank.shadowed}
    cause = _cause_in_join(deviation.code, phases) if stood_by else None
    if cause is not None:
        return cause.lines(rank_list({rank.rank for rank in stood_by}))
    if deviation.code is Code.DIVERGENCE_BUFFERS:
        return Cause.OTHER_COUNT.lines()
    return (Cause.REDUCED_BY_HAND if deviation.is_by_hand else Cause.OTHER_THAN_PLAIN_TRAINING).lines()


def _cause_in_join(code: Code, phases: set[str]) -> Advice[[str]] | None:
    """Return the cause that torch's join does not cover, by the phases in which it answered calls for joined ranks."""
    if code is Code.DIVERGENCE_BUFFERS:
        return Cause.JOINED_WITH_BUFFERS if Phase.BUFFERS.value in phases else None
    if Phase.USER.value in phases:
        return Cause.JOINED_STEPPED
    return Cause.JOINED_WITH_USED_MAP if Phase.USED_MAP.value in phases else Cause.JOINED_DIVISOR


def _factor_text(factor: float, world_size: int) -> str:
    known = {float(world_size): "the world size", 1.0 / world_size: "1 / world size"}
    meant = next((text for value, text in known.items() if abs(factor - value) < 1e-4 * value), "")
    return f"{factor:.4g}" + (f" ({meant})" if meant else "")
