"""The result of one simulation."""

import dataclasses
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.choices import Schedule, identity_in_words
from ddpsim.simulator.errors import VerdictError
from ddpsim.simulator.events import NOT_CHECKED
from ddpsim.simulator.hosts import hosts_text
from ddpsim.simulator.joins import JoinSummary, find_joins
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code, Finding, Verdict, format_replay_line, worst_verdict_of_findings
from ddpsim.simulator.waits import Waiting
from ddpsim.simulator.wording import LabelledLine


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one simulation: findings, returned values and exceptions of ranks, the schedule and the trace."""

    world_size: int
    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    """The value that each rank's program returned; None for a rank that did not return."""
    errors: dict[int, BaseException]
    """The exceptions that ranks raised, by rank, in the order in which they were raised."""
    schedule: Schedule
    """The schedule of the run; `str(result.schedule)` is the replay token."""
    trace: Trace = field(repr=False)
    virtual_seconds: float = 0.0
    program: str = ""
    replay: str = ""
    """The call of `replay`, or the command, that repeats this run."""
    waiting: tuple[Waiting, ...] = field(default=(), repr=False)
    """Which ranks waited for which ranks when a deadlock or a mismatch ended the run; () for a run that completed."""

    comparisons: int | None = None
    """How often the replicas of two or more ranks were compared; None if `check` was off."""
    has_poisoned: bool = False
    """True if option `poison` filled a buffer. Then a replay needs this option, too."""
    checked: str = ""
    """For a run that passed, a line on the comparisons of model replicas."""
    note: str = ""
    """For a run that passed, a line that says if its ranks never communicated."""
    not_struck: str = ""
    """For a run that passed, a line on injected faults that did not happen."""
    notes: tuple[str, ...] = ()
    """For a run that passed, lines that say what was not checked, and what ranks left behind."""
    attempts: tuple["Result", ...] = field(default=(), repr=False)
    """The attempts before this one, in each of which a rank failed; () unless a launcher started the ranks again."""
    unlike: str = ""
    """For a replay that does not find what its token says, a line that says so."""

    def __post_init__(self) -> None:
        failed = [each.code for each in self.findings if each.code.verdict is Verdict.FAIL]
        found = next((str(code) for code in failed if code is not Code.NONDETERMINISM), "")  # which one run cannot find
        if found != self.schedule.found:
            object.__setattr__(self, "schedule", dataclasses.replace(self.schedule, found=found))

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings: fail, otherwise unknown, otherwise pass."""
        return worst_verdict_of_findings(self.findings) if self.findings else Verdict.PASS

    @property
    def unchecked(self) -> dict[str, str]:
        """The notes on what was not checked, by their texts without numbers, in which schedules differ."""
        return {re.sub(r"\d+", "", note): note for note in self.notes[::-1] if note.startswith(NOT_CHECKED)}

    @property
    def joins(self) -> tuple[JoinSummary, ...]:
        """The uses of `join()` in the run: when each rank ran out of input, and what it then made for the others."""
        return find_joins(self.trace)

    def compared_with(self, recorded: Schedule) -> "Result":
        """Return this result of a replay, with a note if the recorded run found what this one did not."""
        is_found = not recorded.found or recorded.found in [str(finding.code) for finding in self.findings]
        return dataclasses.replace(self, unlike="" if is_found else _UNLIKE.format(recorded.found))

    def with_replay(self, replay: str) -> "Result":
        """Return a copy of this result with another replay command, also in its findings."""
        hosts = [LabelledLine("hosts", self.hosts)] if self.hosts else []
        findings = tuple(
            dataclasses.replace(
                finding,
                replay=replay,
                where=(*source_lines_of_sites(finding.sites, finding.text, finding.calls), *hosts),
            )
            for finding in self.findings
        )
        return dataclasses.replace(self, findings=findings, replay=replay)

    def _earlier_parts(self) -> Iterator[str]:
        for number, earlier in enumerate(self.attempts, 1):
            yield f"attempt {number}, after which the launcher started all ranks again"
            yield from (finding.body for finding in earlier.findings)
        if self.attempts:
            yield f"attempt {len(self.attempts) + 1}, the last"

    @property
    def hosts(self) -> str:
        """Which ranks ran on which host; "" if there is only one."""
        nodes = 1 if self.schedule.start is None else self.schedule.start.nodes
        return hosts_text(self.world_size, nodes) if nodes > 1 else ""

    def raise_for_verdict(self) -> None:
        """Raise VerdictError unless the run passed.

        The text is that of the result, and the cause is the first error of a rank.
        """
        __tracebackhide__ = True  # so pytest shows the caller's line
        if self.verdict is not Verdict.PASS:
            raise VerdictError(str(self)) from next(iter(self.errors.values()), None)

    def __str__(self) -> str:
        """Return the text of the result: PASS or the findings, the uses of `join()`, and the replay line."""
        parts = [finding.body for finding in self.findings]
        joined = "".join(f"\n{joining}" for joining in self.joins)
        if self.verdict is Verdict.PASS:
            events = f"  {len(self.trace)} events" if self.trace else ""  # real processes have none
            checked = f"\n  check   {self.checked}" if self.checked else ""
            notes = (self.note, self.not_struck, *self.notes, self.unlike)
            note = f"\n  hosts   {self.hosts}" if self.hosts else ""
            note += "".join(f"\n  note    {each}" for each in notes if each)
            parts.insert(0, f"PASS  {identity_in_words(self.program)}{events}{note}{checked}{joined}")
        else:
            parts[-1] += joined + (f"\n  note    {self.unlike}" if self.unlike else "")
        text = "\n\n".join([*self._earlier_parts(), *parts])
        return f"{text}\n{format_replay_line(self.replay)}" if self.replay else text


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, or SIGTERM, ended a run; the text is that of the result, which says where each rank stood."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"interrupted\n{result}")
        self.result = result


_UNLIKE = (
    "the token came from a run that found {}, which this one does not: the program has changed, or it depends on what "
    "no schedule decides, such as a file that an earlier run left, or the order of a set of objects, which follows "
    "their addresses"
)
_MOST_SITES = 3
_LONGEST_SOURCE = 100
"""The most characters of a source line that are shown."""


def source_lines_of_sites(sites: Sequence[Site], shown: str, calls: Sequence[Call] = ()) -> tuple[LabelledLine, ...]:
    """Return the source lines of the first few sites, without those that the text `shown` contains.

    For a line of an installed package, the lines of the program that called it in `calls` come first.
    """
    found = []
    for site in [site for site in dict.fromkeys(_with_program_sites(sites, calls)) if site != NOWHERE][:_MOST_SITES]:
        source = linecache.getline(site.path, site.line).strip()
        if source and source not in shown:
            cut = source if len(source) <= _LONGEST_SOURCE else f"{source[: _LONGEST_SOURCE - 3]}..."
            found.append(LabelledLine("where", f"{site}  {cut}"))
    return tuple(found)


def _with_program_sites(sites: Sequence[Site], calls: Sequence[Call]) -> Iterator[Site]:
    for site in sites:
        if site.is_foreign:
            yield from (call.caller for call in calls if call.site == site and call.caller is not None)
        yield site
