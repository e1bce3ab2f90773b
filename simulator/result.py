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
    """What came of one simulation: findings, what the ranks returned or raised, the schedule and the trace."""

    world_size: int
    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    """Per rank what its program returned, or None."""
    errors: dict[int, BaseException]
    """What ranks raised, by rank, in the order in which they raised."""
    schedule: Schedule
    """`str(result.schedule)` is the replay token."""
    trace: Trace = field(repr=False)
    virtual_seconds: float = 0.0
    program: str = ""
    replay: str = ""
    """What to paste to see this run again: a call of `replay`, or a command."""
    waiting: tuple[Waiting, ...] = field(default=(), repr=False)
    """Who waited for whom when nobody could go on, or a mismatch ended the run; () for one that came to its end."""

    comparisons: int | None = None
    """How often check="replicas" compared the replicas of two ranks or more; None where nobody asked for it."""
    has_poisoned: bool = False
    """Tensors of some call held what shows while it was in flight, so another run needs `poison`, too."""
    checked: str = ""
    """What a run that passed says of its check."""
    note: str = ""
    """What is strange about a program that passed: its ranks never met."""
    not_struck: str = ""
    """Which faults a run that passed has not had."""

    @property
    def verdict(self) -> Verdict:
        """Fail over unknown over pass."""
        return combine(self.findings) if self.findings else Verdict.PASS

    @property
    def joins(self) -> tuple[Joining, ...]:
        """The ends of the joins of the run: when each rank ran out of input, and what it shadowed then."""
        return joins(self.trace)

    def with_replay(self, replay: str) -> Result:
        """The same result, with another way to run it again in its text and in that of its findings."""
        findings = tuple(
            dataclasses.replace(finding, replay=replay, where=where_lines(finding.sites, finding.text, finding.calls))
            for finding in self.findings
        )
        return dataclasses.replace(self, findings=findings, replay=replay)

    def raise_for_verdict(self) -> None:
        """Do nothing if the run passed; else raise VerdictError with the whole text, from the first error of a rank."""
        __tracebackhide__ = True  # pytest then shows the caller's line
        if self.verdict is not Verdict.PASS:
            raise VerdictError(str(self)) from next(iter(self.errors.values()), None)

    def __str__(self) -> str:
        """All findings, who joined when, then the replay line; a run that passed says so first."""
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
