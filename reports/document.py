"""The document: everything a report shows of one run or one exploration, as one plain, versioned value.

It holds texts and numbers only, so it can be saved (`json_form`), sent, and rendered elsewhere and later. What of the
simulator's values is plain stands in it as it is: `Verdict`, `EventKind`, `Who`, `Line`. What refers to other values
there does so by index here, in tables of its own: events to `calls`, calls to `sites`, slots and waits to `events`. So
what a thousand ranks share is there once, in memory, in a file and on a page. That is why `Event`, `Call`, `Waiting`
and `Finding` are others than the simulator's, in which whole calls stand, with paths of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ddpsim.simulator.calls import Phase
from ddpsim.simulator.choices import Who
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict, worst
from ddpsim.simulator.wording import Line

VERSION = 1
"""Raised when a reader of the version before would misread a document."""

MARKS = frozenset(EventKind) - {EventKind.ISSUE, EventKind.MATCH, EventKind.WAIT, EventKind.DONE}
"""Events that tell of no call and no wait."""

End = Literal["returned", "raised", "waiting", "stopped", "unknown"]
"""How a rank ended: it waits for good, or it was stopped on its way because of others; unknown where no trace is."""

SlotState = Literal["matched", "open", "mismatched"]


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program, with a few lines around it."""

    file: str
    """Relative to the folder the run was started in, or without its folders."""
    line: int
    function: str
    first: int = 0
    """The number of the first line of `source`."""
    source: tuple[str, ...] = ()
    """() if the file could not be read."""

    @property
    def short(self) -> str:
        """File name and line."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call, without its rank: ranks that make the same one share it."""

    operation: str
    group: str
    sequence: int
    signature: str
    """What must agree beside the operation, such as "SUM float32[11]"."""
    site: int | None = None
    """Index into the run's `sites`."""
    caller: int | None = None
    """Index of the line that called the file, or the installed packages, of that one."""
    origin: str = ""
    """What of DDP it belongs to, such as "DDP #0 bucket 1 of step 4"; "" for the user's program."""
    phase: str = ""
    """The part of that which says what it is for, such as "bucket" or "join control"."""
    bucket: int | None = None
    parameters: tuple[str, ...] = ()
    """Names of the parameters in the bucket."""
    peer: int | None = None
    """The other rank of a message; -1 for a receive from any source."""
    tag: int = 0
    is_shadow: bool = False
    """Made on a joined rank to keep the others going."""

    @property
    def is_point_to_point(self) -> bool:
        """True for a send or a receive."""
        return self.peer is not None

    @property
    def purpose(self) -> str:
        """What of DDP it is for, in a word: where there is room for no more."""
        return f"bucket {self.bucket}" if self.bucket is not None else _PURPOSES.get(self.phase, self.phase)


_PURPOSES = {
    Phase.PARAMETER_CHECK.value: "check",
    Phase.STATE_BROADCAST.value: "state",
    Phase.JOIN_CONTROL.value: "join",
    Phase.FOLLOWING.value: "",
}
"""By phase. What a rank that has joined makes since others make it is for what theirs are."""


class Event(NamedTuple):
    """One happening, in the order of the schedule; an array in JSON, as there are many."""

    kind: EventKind
    rank: int
    step: int
    """How many choice points came before it."""
    time: float = 0.0
    """Virtual seconds since the start."""
    call: int | None = None
    """Index into the run's `calls`."""
    text: str = ""
    thread: str = ""
    """The name of the thread, if it is not the one that runs the rank's program."""

    @property
    def who(self) -> Who:
        """The rank, or the thread."""
        return Who(self.rank, self.thread)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where calls meet: one of a collective, or a message with the receive that takes it."""

    group: str
    sequence: int
    issues: tuple[int, ...]
    """Indices of the events that issued its calls, in order of arrival."""
    state: SlotState
    match: int | None = None
    """Index of the event that filled it."""
    missing: tuple[int, ...] = ()
    """Of an open one that ranks wait in: who has not come."""
    any_suffices: bool = False
    """True if one of the missing ranks is enough."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rank or one of its threads waited for when the run ended: an edge of the wait-for graph."""

    who: Who
    what: str
    site: int | None = None
    slots: tuple[int, ...] = ()
    """The slots of the calls that it waits for; it waits for those who are missing there."""
    waits_for: tuple[Who, ...] = ()
    """For whom it waits otherwise: another thread, or who holds a lock."""
    any_suffices: bool = False
    """True if one of the slots, or of those it waits for, is enough."""


@dataclass(frozen=True, slots=True)
class Rank:
    """How one rank ended."""

    rank: int
    end: End
    text: str = ""
    """What it raised, or waited for."""
    site: int | None = None
    coordinates: str = ""
    """Where it stands in the program's device mesh, as "dp 1, tp 0"; "" without a mesh of two dimensions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosed fact."""

    code: str
    verdict: Verdict
    """What a run with it comes to; pass for hazards."""
    ranks: tuple[int, ...]
    """The culprits."""
    summary: str
    text: str
    """The diagnosis, over several lines."""
    sites: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    """Where the calls that it speaks of met, or wait."""
    lines: tuple[Line, ...] = ()
    """Of the text, what ddpsim says in a word: the cycle, the cause, what to try."""

    @property
    def is_mismatch(self) -> bool:
        """Calls met and differ."""
        return self.code.startswith("mismatch.")


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    name: str
    world_size: int
    verdict: Verdict
    findings: tuple[Finding, ...]
    text: str
    """The whole text of the result."""
    how: str = ""
    """Engine, policy, transport, as one reads it in the head line."""
    is_expected: bool | None = None
    """None if nothing was expected."""
    conclusion: str = ""
    """What was expected, and whether it was found."""
    ranks: tuple[Rank, ...] = ()
    sites: tuple[Site, ...] = ()
    calls: tuple[Call, ...] = ()
    events: tuple[Event, ...] = ()
    events_left_out: int = 0
    """So many came before these, of a run too long for a report."""
    slots: tuple[Slot, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    joins: tuple[str, ...] = ()
    """Who joined when, and what it shadowed: a sentence each."""
    schedule: str = ""
    """The replay token."""
    replay: str = ""
    """What to paste to see the run again."""
    digest: str = ""
    """Of the trace."""
    virtual_seconds: float = 0.0
    seconds: float | None = None
    """Wall time, if it was measured."""

    @property
    def leading(self) -> Finding | None:
        """The finding that the text begins with."""
        return self.findings[0] if self.findings else None

    @property
    def culprits(self) -> frozenset[int]:
        """Whom the findings blame that make it fail."""
        return frozenset(rank for each in self.findings if each.verdict is Verdict.FAIL for rank in self.blamed(each))

    def blamed(self, finding: Finding) -> tuple[int, ...]:
        """The ranks that a finding blames; none where it names every rank that it speaks of, as one against another."""
        if self.has_sides(finding):
            return ()
        is_of_all = finding.code.startswith("divergence.") and len(finding.ranks) == self.world_size
        return () if is_of_all else finding.ranks

    def has_sides(self, finding: Finding) -> bool:
        """True if calls met and differ, and any of them may be the wrong one: as many ranks stand on either side."""
        if not finding.is_mismatch:
            return False
        issuers = {self.events[issue].rank for index in finding.slots for issue in self.slots[index].issues}
        return bool(issuers) and issuers <= set(finding.ranks)

    @property
    def roots(self) -> frozenset[int]:
        """Of the slots in which somebody is missing, those that are the cause; in the others ranks only wait on.

        The cause is where a rank is missing that is to blame; in a circle, where one of it waits for another. Where
        calls met that differ, that is the cause, and whoever is missing has only not come yet.
        """
        blamed, open_ = self.culprits, self.awaited
        circle = {rank for finding in self.findings for rank in finding.cycle}
        found = []
        for index in open_:
            waiting = {self.events[issue].rank for issue in self.slots[index].issues}
            if blamed & set(self.slots[index].missing) and (not circle or waiting & circle):
                found.append(index)
        differ = any(each.is_mismatch and each.verdict is Verdict.FAIL for each in self.findings)
        return frozenset(found if found or differ else open_)

    @property
    def slot_of(self) -> dict[int, int]:
        """The slots of the calls, by the events that issued them."""
        return {issue: index for index, slot in enumerate(self.slots) for issue in slot.issues}

    @property
    def awaited(self) -> list[int]:
        """The slots in which somebody is missing."""
        return [index for index, slot in enumerate(self.slots) if slot.state == "open" and slot.missing]

    def issued(self, event: int) -> Call:
        """The call that an event issued."""
        index = self.events[event].call
        assert index is not None
        return self.calls[index]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What several executions of an exploration came to."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice of a schedule; or several in a row that took the default."""

    first: int
    """Which one it is, counted from 1."""
    last: int
    step: int
    """Of the run, at the first."""
    text: str
    """What was chosen, as in "rank 0 receives from rank 3"."""
    others: str = ""
    """Whom else there was to choose, as in "ranks 1-3"."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part: the first event that is not the same in both."""

    failing: int | None
    """Index of the event of the run that failed; None if that run ended there, or its event is left out."""
    passing: int | None
    text: str
    """What each did there."""
    choices: tuple[Chosen, Chosen] | None = None
    """What the run that failed chose first that the other did not, and what that chose; None if nobody looked."""
    before: tuple[Chosen, ...] = ()
    """The last of the choices before it, which are the same in both."""

    @property
    def sides(self) -> tuple[Line, Line]:
        """The text as two lines: what the failing run did, and what the passing one."""
        failing, _, passing = self.text.removeprefix("failing: ").partition("; passing: ")
        return Line("failing", failing), Line("passing", passing)


@dataclass(frozen=True, slots=True)
class Exploration:
    """Many executions of one program; the two that stand for them are runs of the document."""

    program: str
    verdict: Verdict
    executions: int
    is_complete: bool
    extent: str
    """How far it came, in a sentence."""
    outcomes: tuple[Outcome, ...]
    """The most frequent first."""
    seconds: float
    failing: int | None = None
    """Index into the document's `runs`: the first that failed."""
    passing: int | None = None
    """The first that passed."""
    difference: Difference | None = None
    """None unless there are both."""
    is_expected: bool | None = None
    conclusion: str = ""
    """What was expected, and whether it was found."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a report shows."""

    title: str
    runs: tuple[Run, ...]
    exploration: Exploration | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and platform, by name."""
    version: int = VERSION

    @property
    def verdict(self) -> Verdict:
        """That of the exploration, or the worst of the runs."""
        if self.exploration is not None:
            return self.exploration.verdict
        return worst(run.verdict for run in self.runs)
