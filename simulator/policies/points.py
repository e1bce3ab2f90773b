"""Properties of a choice point that follow from its options alone."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint


def is_poll_in_vain(point: ChoicePoint, options: Sequence[int]) -> bool:
    """True if the running rank's poll failed: then all other ranks are listed before it."""
    return point.kind is ChoiceKind.RANK and options[-1] == point.rank


def may_go_on(point: ChoicePoint, options: Sequence[int]) -> bool:
    """True if the running rank can continue, so every choice except 0 is a preemption."""
    return point.kind is ChoiceKind.RANK and point.number > 0 and options[0] == point.rank
