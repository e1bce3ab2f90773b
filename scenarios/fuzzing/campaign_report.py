"""Results of executions, of batches and of a campaign, as values that can be sent between processes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.scenarios.engines import Engine

NO_CODE = "pass"
"""The code of a failure without a finding: a run passed although a finding was expected."""


class FailureGroup(NamedTuple):
    """The key by which failures count as the same failure. Only the first failure with each key is kept."""

    engine: Engine
    code: str
    """Code of the first finding; for an exception inside ddpsim, the exception's type."""
    kind: str


@dataclass(frozen=True, slots=True)
class FuzzFailure:
    """A scenario whose result was not the expected one."""

    group: FailureGroup
    found: str
    """The verdict, finding code and ranks of the result."""
    expected: str
    text: str
    """The TOML text of the failing scenario, with its schedule and engine."""


@dataclass(frozen=True, slots=True)
class FuzzExecution:
    """One run of a scenario under one schedule."""

    kind: str
    engine: Engine
    outcome: str
    """The verdict and finding code of the execution."""
    failure: FuzzFailure | None = None


@dataclass(frozen=True, slots=True)
class CampaignTotals:
    """Counts of executions and outcomes."""

    executions: Counter[tuple[str, Engine]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[FailureGroup] = field(default_factory=Counter)

    def __add__(self, other: "CampaignTotals") -> "CampaignTotals":
        return CampaignTotals(
            self.executions + other.executions, self.outcomes + other.outcomes, self.failures + other.failures
        )

    @property
    def execution_count(self) -> int:
        """Return the number of all executions."""
        return self.executions.total()


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of a batch. The same plan and batch number give the same result, except for the seconds."""

    number: int
    totals: CampaignTotals
    failures: tuple[FuzzFailure, ...]
    """The first failure of each group of equal failures."""
    seconds: float
    is_interrupted: bool = False
    """True if Ctrl-C ended the batch early."""
    standing: str = ""
    """Where each rank of the run stood that Ctrl-C ended; "" if it ended none."""


def make_batch_report(
    number: int, executions: Iterable[FuzzExecution], seconds: float, *, is_interrupted: bool = False
) -> BatchReport:
    """Make the report of a batch: count the executions, and keep the first failure of each group of equal failures."""
    done = list(executions)
    failures = [each.failure for each in done if each.failure is not None]
    first: dict[FailureGroup, FuzzFailure] = {}
    for failure in failures:
        first.setdefault(failure.group, failure)
    totals = CampaignTotals(
        Counter((each.kind, each.engine) for each in done),
        Counter(each.outcome for each in done),
        Counter(failure.group for failure in failures),
    )
    return BatchReport(number, totals, tuple(first.values()), seconds, is_interrupted)


def merge_batch_reports(reports: Iterable[BatchReport]) -> tuple[CampaignTotals, tuple[FuzzFailure, ...]]:
    """Return the totals of several batches, and the first failure of each group in the order of batch numbers.

    Each batch counts once.
    """
    by_number = {report.number: report for report in reports}
    totals, first = CampaignTotals(), dict[FailureGroup, FuzzFailure]()
    for number in sorted(by_number):
        totals += by_number[number].totals
        for failure in by_number[number].failures:
            first.setdefault(failure.group, failure)
    return totals, tuple(first.values())
