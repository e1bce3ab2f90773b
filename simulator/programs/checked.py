"""The result of checking a program, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddpsim.simulator.diagnosis.deadlock_snapshot import RankState
from ddpsim.simulator.programs.program import Issue
from ddpsim.simulator.verdict import Finding, Verdict, combine


class RankEnd(NamedTuple):
    """Where a rank stopped."""

    state: RankState | None
    """None if it could have gone on when a mismatch ended the run."""
    step: int
    """The step it stopped in; the number of its steps if it did them all."""


class Met(NamedTuple):
    """One rank's call among calls that met."""

    rank: int
    issue: Issue


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """The result of checking a program."""

    findings: tuple[Finding, ...]
    ends: tuple[RankEnd, ...]
    """By rank."""
    met: tuple[tuple[Met, ...], ...]
    """The calls that met and agreed, in group-rank order (a send stands before its recv), in the order they did."""
    clashing: tuple[tuple[Met, ...], ...]
    """Those of the mismatches that were found."""

    @property
    def verdict(self) -> Verdict:
        """Fail over pass."""
        return combine(self.findings)

    def __str__(self) -> str:
        """All findings; a program that passes says so first."""
        parts = [finding.body for finding in self.findings]
        passed = [f"PASS  {len(self.met)} calls met"] if self.verdict is Verdict.PASS else []
        return "\n\n".join(passed + parts)
