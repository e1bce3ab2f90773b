"""What came of a test, on one rank or on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended, and why it was skipped or failed."""

    status: Status
    why: str = ""


def of_all(outcomes: Sequence[Outcome]) -> Outcome:
    """Of what came of a test on each rank: a test is skipped only where all skip it."""
    for each in outcomes:
        if each.status is Status.FAILED:
            return each
    if len({each.status for each in outcomes}) > 1:
        return Outcome(Status.FAILED, "some ranks skip it")
    return outcomes[0]


def first_line(text: str) -> str:
    """The first line of a text that has one, short enough for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:160] if lines else ""
