"""What came of executions, batches and a campaign, as values that go from one process to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.scenarios.engines import Engine

NO_CODE = "pass"
"""Stands for a finding's code where something passed and was not to."""


class Group(NamedTuple):
    """Failures that are taken for one, and of which the first is kept."""

    engine: Engine
    code: str
    """Of the leading finding; the type of an exception of ours."""
    kind: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A scenario that came to something else than expected."""

    group: Group
    found: str
    """Verdict, code and ranks."""
    expected: str
    text: str
    """The scenario with its schedule and engine, as a TOML file."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a scenario under one schedule."""

    kind: str
    engine: Engine
    outcome: str
    """Verdict and code."""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """How often there was what."""

    executions: Counter[tuple[str, Engine]] = field(default_factory=Counter)
    """By kind of scenario and engine."""
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[Group] = field(default_factory=Counter)

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.executions + other.executions, self.outcomes + other.outcomes, self.failures + other.failures
        )

    @property
    def count(self) -> int:
        """Of all executions."""
        return self.executions.total()


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What came of a batch. The same plan and number give the same, but for the seconds."""

    number: int
    totals: Totals
    failures: tuple[Failure, ...]
    """The first of each group."""
    seconds: float
    is_interrupted: bool = False
    """Ctrl-C ended it early."""


def batch_report(
    number: int, executions: Iterable[Execution], seconds: float, *, is_interrupted: bool = False
) -> BatchReport:
    """Count executions, and keep the first failure of each group."""
    done = list(executions)
    failures = [each.failure for each in done if each.failure is not None]
    first: dict[Group, Failure] = {}
    for failure in failures:
        first.setdefault(failure.group, failure)
    totals = Totals(
        Counter((each.kind, each.engine) for each in done),
        Counter(each.outcome for each in done),
        Counter(failure.group for failure in failures),
    )
    return BatchReport(number, totals, tuple(first.values()), seconds, is_interrupted)


def merged(reports: Iterable[BatchReport]) -> tuple[Totals, tuple[Failure, ...]]:
    """Totals, and the first failure of each group: by the batches' numbers, each counted once, in whatever order."""
    by_number = {report.number: report for report in reports}
    totals, first = Totals(), dict[Group, Failure]()
    for number in sorted(by_number):
        totals += by_number[number].totals
        for failure in by_number[number].failures:
            first.setdefault(failure.group, failure)
    return totals, tuple(first.values())
