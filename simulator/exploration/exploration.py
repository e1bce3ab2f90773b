"""What an exploration found, and how far it has come, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.choices import in_words
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Verdict


class End(Enum):
    """Why an exploration ended."""

    COVERED = "covered"
    """No schedule is left within the strategy's limits."""
    FAILURE = "failure"
    """An execution failed, and it was not told to go on."""
    BUDGET = "budget"
    INTERRUPT = "interrupt"
    """Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an exploration has come."""

    executions: int
    failures: int
    seconds: float
    coverage: float | None
    """An estimate of the share of all schedules that is covered, from 0 to 1; None if the policy has none."""

    @property
    def rate(self) -> float:
        """Executions per second so far."""
        return self.executions / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Exploration:
    """What came of many executions. `str(exploration)` tells it, and ends in the replay line of the first failure."""

    program: str
    executions: int
    complete: bool
    """What was run stands for every schedule there is."""
    verdict: Verdict
    """Fail if an execution failed. Pass only if the exploration is complete: a budget that ran out is unknown, so the
    policies that draw schedules never pass a program that leaves anything open."""
    first_failure: Result | None
    """Its schedule and its replay line reproduce it."""
    first_pass: Result | None
    """An execution that passed, to compare with; None if none did."""
    outcomes: Counter[str]
    """How often there was what outcome: the verdict, the findings' codes with their ranks, and what was returned if
    executions that passed differ in that."""
    end: End
    seconds: float
    limits: str = ""
    """What held of all schedules, such as "with at most 2 preemptions"."""
    outside: str = ""
    """By what ranks may differ all the same that is not seen, such as "files"."""

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended it; what was found until then is here."""
        return self.end is End.INTERRUPT

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}  {in_words(self.program)}", f"  {self.extent}"]
        lines += [f"  {count:>7}  {outcome}" for outcome, count in self.outcomes.most_common()]
        if self.first_failure is None:
            if self.first_pass is not None and self.first_pass.not_struck:
                lines.append(f"  note    in the first that passed {self.first_pass.not_struck}")
            return "\n".join(lines)
        return "\n".join([*lines, "", str(self.first_failure)])

    @property
    def extent(self) -> str:
        """How far it came, in a sentence."""
        runs = "1 execution" if self.executions == 1 else f"{self.executions} executions"
        limits = f" {self.limits}" if self.limits else ""
        if self.end is End.COVERED:
            fails = all(outcome.startswith(Verdict.FAIL.value) for outcome in self.outcomes)
            outside = f", but for {self.outside}" if self.outside else ""
            return f"All interleavings{limits} covered{outside}: {runs}{', and every one fails' if fails else ''}"
        if self.end is End.FAILURE:
            where = "The first execution" if self.executions == 1 else f"Execution {self.executions}"
            return f"{where} failed; what other interleavings{limits} come to was not looked at"
        ended = "interrupted after" if self.interrupted else "the budget ran out after"
        return f"Not all interleavings{limits} covered: {ended} {runs}"
