"""What can be told of a choice point from its options alone."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint


def is_poll_in_vain(point: ChoicePoint, options: Sequence[int]) -> bool:
    """True where a rank looked for something that is not there: then all others come before it."""
    return point.kind is ChoiceKind.RANK and options[-1] == point.rank


def may_go_on(point: ChoicePoint, options: Sequence[int]) -> bool:
    """True where the running rank could simply go on, so that every choice but 0 is a preemption."""
    return point.kind is ChoiceKind.RANK and point.number > 0 and options[0] == point.rank
