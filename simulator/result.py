"""The result of one simulation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ddpsim.simulator.choices import Schedule, in_words
from ddpsim.simulator.errors import VerdictError
from ddpsim.simulator.joins import Joining, joins
from ddpsim.simulator.source_lines import where_lines
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Finding, Verdict, combine, replay_line
from ddpsim.simulator.waits import Waiting


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one simulation: findings, returned values and exceptions of ranks, the schedule and the trace."""

    world_size: int
    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    """The value that each rank's program returned, or None."""
    errors: dict[int, BaseException]
    """The exceptions of ranks, by rank, in the order in which they were raised."""
    schedule: Schedule
    """`str(result.schedule)` is the replay token."""
    trace: Trace = field(repr=False)
    virtual_seconds: float = 0.0
    program: str = ""
    replay: str = ""
    """The call of `replay` or the command that repeats this run."""
    waiting: tuple[Waiting, ...] = field(default=(), repr=False)
    """Which ranks waited for which when a deadlock or a mismatch ended the run; () for a run that completed."""

    comparisons: int | None = None
    """How often the replicas of two or more ranks were compared; None if `check` was off."""
    has_poisoned: bool = False
    """True if `poison` filled a buffer, so that a replay needs it, too."""
    checked: str = ""
    """For a run that passed, a line on the replica comparisons."""
    note: str = ""
    """For a program that passed, a line if its ranks never communicated."""
    not_struck: str = ""
    """For a run that passed, a line on injected faults that did not happen."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings: fail, then unknown, then pass."""
        return combine(self.findings) if self.findings else Verdict.PASS

    @property
    def joins(self) -> tuple[Joining, ...]:
        """The uses of `join()` in the run: when each rank ran out of input, and which collectives it then answered."""
        return joins(self.trace)

    def with_replay(self, replay: str) -> Result:
        """Return this result with another replay command in its text and in the texts of its findings."""
        findings = tuple(
            dataclasses.replace(finding, replay=replay, where=where_lines(finding.sites, finding.text, finding.calls))
            for finding in self.findings
        )
        return dataclasses.replace(self, findings=findings, replay=replay)

    def raise_for_verdict(self) -> None:
        """Raise VerdictError with the whole text unless the run passed; its cause is the first error of a rank."""
        __tracebackhide__ = True  # so pytest shows the caller's line
        if self.verdict is not Verdict.PASS:
            raise VerdictError(str(self)) from next(iter(self.errors.values()), None)

    def __str__(self) -> str:
        """Return PASS or the findings, the uses of `join()`, and the replay line."""
        parts = [finding.body for finding in self.findings]
        joined = "".join(f"\n{joining}" for joining in self.joins)
        if self.verdict is Verdict.PASS:
            events = f"  {len(self.trace)} events" if self.trace else ""  # real processes have none
            checked = f"\n  check   {self.checked}" if self.checked else ""
            note = "".join(f"\n  note    {each}" for each in (self.note, self.not_struck) if each)
            parts.insert(0, f"PASS  {in_words(self.program)}{events}{note}{checked}{joined}")
        else:
            parts[-1] += joined
        text = "\n\n".join(parts)
        return f"{text}\n{replay_line(self.replay)}" if self.replay else text
