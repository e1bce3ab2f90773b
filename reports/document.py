"""The document: all that a report shows of one run or one exploration (many schedules), as a plain, versioned value.

Its values are rows of tables, which refer to each other by index: events to `calls`, calls to `sites`, slots and waits
to `events`. So its `Event`, `Call`, `Waiting` and `Finding` differ from the simulator's classes.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ddpsim.simulator.calls import Phase
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict, worst_verdict
from ddpsim.simulator.wording import LabelledLine

VERSION = 1
"""The version of the document's format. It grows when a reader of the previous version would misread a document."""

MARKS = frozenset(EventKind) - {EventKind.ISSUE, EventKind.MATCH, EventKind.WAIT, EventKind.DONE}
"""Kinds of events that belong to no call and to no wait."""

End = Literal["returned", "raised", "waiting", "stopped", "unknown"]
"""How a rank ended. "waiting": it waits forever. "stopped": others ended the run. "unknown": there is no trace."""

SlotState = Literal["matched", "open", "mismatched"]


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program, with a few lines of source around it."""

    file: str
    """The file's path relative to the folder where the run was started, or only its name."""
    line: int
    function: str
    first: int = 0
    """The number of the first line of `source`."""
    source: tuple[str, ...] = ()
    """Lines of source; () if the file could not be read."""

    @property
    def short(self) -> str:
        """The file name and line number, as text."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Call:
    """A communication call, without its rank: ranks that make the same call share one row."""

    operation: str
    group: str
    sequence: int
    signature: str
    """What must be equal on all ranks besides the operation, such as "SUM float32[11]"."""
    site: int | None = None
    """Index of the user's line that made the call, in the run's `sites`."""
    caller: int | None = None
    """Index of the line in another file that called into the file, or into the installed package, of `site`."""
    origin: str = ""
    """The part of DDP that made the call, such as "DDP #0 bucket 1 of step 4"; "" for the user's program."""
    phase: str = ""
    """The purpose of the call within DDP, such as "bucket" or "join control"."""
    bucket: int | None = None
    parameters: tuple[str, ...] = ()
    """Names of the parameters in the call's bucket."""
    peer: int | None = None
    """The other rank of a send or receive; -1 for a receive from any source."""
    tag: int = 0
    is_shadow: bool = False
    """True if `join()` made the call on a joined rank, to answer a call of the other ranks."""

    @property
    def is_point_to_point(self) -> bool:
        """True for a send or a receive."""
        return self.peer is not None

    @property
    def purpose(self) -> str:
        """The call's purpose within DDP in one or two words, for a narrow place."""
        return f"bucket {self.bucket}" if self.bucket is not None else _PURPOSES.get(self.phase, self.phase)


_PURPOSES = {
    Phase.PARAMETER_CHECK.value: "check",
    Phase.STATE_BROADCAST.value: "state",
    Phase.JOIN_CONTROL.value: "join",
    Phase.FOLLOWING.value: "",
}
"""A short word for some purposes of DDP's calls. Calls that only answer other ranks' calls have no such word."""


class Event(NamedTuple):
    """An event of the trace, in the order of the schedule. In JSON an event is an array, since there are many."""

    kind: EventKind
    rank: int
    step: int
    """The number of choices of the scheduler before this event."""
    time: float = 0.0
    """Virtual seconds since the start."""
    call: int | None = None
    """Index into the run's `calls`."""
    text: str = ""
    thread: str = ""
    """The name of the thread; "" for the thread that runs the rank's program."""

    @property
    def who(self) -> RankOrThread:
        """The rank or thread to which the event happened."""
        return RankOrThread(self.rank, self.thread)


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """A row for calls that match each other: the calls of one collective, or a send and its receive."""

    group: str
    sequence: int
    issues: tuple[int, ...]
    """Indices of the events that issued these calls, in order of arrival."""
    state: SlotState
    match: int | None = None
    """Index of the event at which the calls matched."""
    missing: tuple[int, ...] = ()
    """The ranks whose call is missing, if other ranks wait for the calls to match."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rank or a thread waited for when the run ended: an edge of the wait-for graph."""

    who: RankOrThread
    what: str
    site: int | None = None
    slots: tuple[int, ...] = ()
    """Slots (rows of matching calls) whose missing calls the rank waits for."""
    waits_for: tuple[RankOrThread, ...] = ()
    """Other ranks and threads that the rank waits for, such as the holder of a lock."""
    any_suffices: bool = False
    """True if one of `slots` or `waits_for` is enough to end the wait."""


@dataclass(frozen=True, slots=True)
class Rank:
    """How one rank ended."""

    rank: int
    end: End
    text: str = ""
    """The error that the rank raised, or what it waited for."""
    site: int | None = None
    coordinates: str = ""
    """The rank's position in the program's device mesh, such as "dp 1, tp 0"; "" without a mesh of two dimensions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosed problem."""

    code: str
    verdict: Verdict
    """The verdict of a run that has this finding; pass for a hazard."""
    ranks: tuple[int, ...]
    """The ranks that cause the problem."""
    summary: str
    text: str
    """The diagnosis, in several lines."""
    sites: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    """The slots (rows of matching calls) that the problem is about."""
    lines: tuple[LabelledLine, ...] = ()
    """Labelled lines of `text`: the cycle, the cause, what to try."""
    event: int | None = None
    """If replicas differ: the index of the event at which that was found; None if the report does not have it."""

    @property
    def is_mismatch(self) -> bool:
        """True if calls that match each other have different arguments."""
        return self.code.startswith("mismatch.")


@dataclass(frozen=True, slots=True)
class Run:
    """What a report shows of one run."""

    name: str
    world_size: int
    verdict: Verdict
    findings: tuple[Finding, ...]
    text: str
    """The whole text of the simulator's result."""
    how: str = ""
    """The engine, policy and transport of the run, as its first line shows them."""
    is_expected: bool | None = None
    """Whether the outcome was the expected one; None if nothing was expected."""
    conclusion: str = ""
    """Which outcome was expected, and whether the run had it."""
    ranks: tuple[Rank, ...] = ()
    sites: tuple[Site, ...] = ()
    calls: tuple[Call, ...] = ()
    events: tuple[Event, ...] = ()
    events_left_out: int = 0
    """The number of events before the first of `events`, if the run is too long for a report."""
    slots: tuple[MatchedCalls, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    joins: tuple[str, ...] = ()
    """Sentences about `join()`: when each rank joined, and which calls it answered for others."""
    schedule: str = ""
    """The replay token."""
    replay: str = ""
    """The command that repeats the run."""
    digest: str = ""
    virtual_seconds: float = 0.0
    seconds: float | None = None
    """Wall time, if it was measured."""

    @property
    def leading(self) -> Finding | None:
        """The finding at the beginning of the run's text; None if there is none."""
        return self.findings[0] if self.findings else None

    @property
    def culprits(self) -> frozenset[int]:
        """The ranks that cause the run's failing findings."""
        return frozenset(
            rank for each in self.findings if each.verdict is Verdict.FAIL for rank in self.blamed_ranks(each)
        )

    def blamed_ranks(self, finding: Finding) -> tuple[int, ...]:
        """Return the ranks that a finding blames; () if it names all ranks and any may be wrong."""
        if self.has_sides(finding):
            return ()
        is_of_all = finding.code.startswith("divergence.") and len(finding.ranks) == self.world_size
        return () if is_of_all else finding.ranks

    def has_sides(self, finding: Finding) -> bool:
        """Return True if the arguments of matched calls differ and no majority shows which ranks are wrong."""
        if not finding.is_mismatch:
            return False
        issuers = {self.events[issue].rank for index in finding.slots for issue in self.slots[index].issues}
        return bool(issuers) and issuers <= set(finding.ranks)

    @property
    def causal_matched_calls(self) -> frozenset[int]:
        """Of the slots (rows of matching calls) that lack a rank: those that cause the failure, not its consequences.

        A slot is a cause if a blamed rank is missing there and, in a cycle of waits, a rank of the cycle waits there.
        If arguments of matched calls differ, that is the cause, and the missing ranks have only not arrived yet.
        """
        blamed, open_ = self.culprits, self.calls_with_missing_ranks
        circle = {rank for finding in self.findings for rank in finding.cycle}
        found = []
        for index in open_:
            waiting = {self.events[issue].rank for issue in self.slots[index].issues}
            if blamed & set(self.slots[index].missing) and (not circle or waiting & circle):
                found.append(index)
        differ = any(each.is_mismatch and each.verdict is Verdict.FAIL for each in self.findings)
        return frozenset(found if found or differ else open_)

    @property
    def matched_calls_by_issue(self) -> dict[int, int]:
        """By the index of the event that issued a call: the index of the call's slot (row of matching calls)."""
        return {issue: index for index, slot in enumerate(self.slots) for issue in slot.issues}

    @property
    def calls_with_missing_ranks(self) -> list[int]:
        """The slots (rows of matching calls) in which a rank is missing."""
        return [index for index, slot in enumerate(self.slots) if slot.state == "open" and slot.missing]

    def issued_call(self, event: int) -> Call:
        """Return the communication call that an event issued."""
        index = self.events[event].call
        assert index is not None
        return self.calls[index]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome of an exploration, with the number of schedules that led to it."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """A choice of the scheduler, or consecutive choices that all took the default."""

    first: int
    """The number of the first choice, counted from 1."""
    last: int
    step: int
    """The step of the run at the first choice."""
    text: str
    """What was chosen, as in "rank 0 receives from rank 3"."""
    others: str = ""
    """The options that were not chosen, such as "ranks 1-3"."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The point at which two runs diverge: the first event that is not equal in both."""

    failing: int | None
    """Index of that event in the failing run; None if that run ended there, or the document leaves the event out."""
    passing: int | None
    text: str
    """Text on what each run did at that point."""
    choices: tuple[ScheduleChoice, ScheduleChoice] | None = None
    """The first choice that differs, in the failing and in the passing run; None if no search was made."""
    before: tuple[ScheduleChoice, ...] = ()
    """The last choices before that point, which are equal in both runs."""

    @property
    def sides(self) -> tuple[LabelledLine, LabelledLine]:
        """The text as two lines: what the failing run did, and what the passing run did."""
        failing, _, passing = self.text.removeprefix("failing: ").partition("; passing: ")
        return LabelledLine("failing", failing), LabelledLine("passing", passing)


@dataclass(frozen=True, slots=True)
class Exploration:
    """Many executions of one program. The document has one that failed and one that passed as runs."""

    program: str
    verdict: Verdict
    executions: int
    is_complete: bool
    extent: str
    """A sentence that says how many schedules were explored."""
    outcomes: tuple[Outcome, ...]
    seconds: float
    failing: int | None = None
    """Index into the document's `runs`: the first run that failed."""
    passing: int | None = None
    """Index into the document's `runs`: the first run that passed."""
    difference: Difference | None = None
    """Where the failing and the passing run diverge; None unless there are both."""
    is_expected: bool | None = None
    conclusion: str = ""
    """Which outcome was expected, and whether a schedule led to it."""


@dataclass(frozen=True, slots=True)
class Document:
    """All that a report shows of one run or one exploration; every form of report renders this value."""

    title: str
    runs: tuple[Run, ...]
    exploration: Exploration | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and platform, by name."""
    version: int = VERSION

    @property
    def verdict(self) -> Verdict:
        """The verdict of the exploration, or the worst verdict of the runs."""
        if self.exploration is not None:
            return self.exploration.verdict
        return worst_verdict(run.verdict for run in self.runs)

    @property
    def difference(self) -> Difference | None:
        """Where two runs of the exploration diverge; None if it does not have two runs that differ."""
        return self.exploration.difference if self.exploration else None


class ReportError(ValueError):
    """A file is no report, or a folder cannot hold a report. The message says what was found and what to do."""
