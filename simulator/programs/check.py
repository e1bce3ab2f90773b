"""Checks a program: which calls meet, which ranks wait forever, and why. Pure; takes a millisecond or two.

Matching and diagnosis are the simulator's own, and so is the order: a rank goes on until it has to wait, then the next
one that can does, in a circle, and a receive from any source takes the first message by rank. So what `simulate` finds
in a program, `check` finds, too. It says nothing of data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.diagnosis.deadlock import deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankSnapshot, RankState, Snapshot, open_slots
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind, WatchedRun, hazards
from ddpsim.simulator.diagnosis.mismatch import early_mismatches, mismatch, pair_mismatch
from ddpsim.simulator.diagnosis.rank_errors import rank_error
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.matching.agreement import branches_meet, disagreement, pair_disagreement
from ddpsim.simulator.matching.point_to_point import PointToPointTable
from ddpsim.simulator.matching.slots import Slot, SlotTable
from ddpsim.simulator.operations import OPERATIONS, POINT_TO_POINT, Splits
from ddpsim.simulator.programs.program import CRASH, Group, Issue, Program, Return, Step, Wait
from ddpsim.simulator.programs.validation import members_of, validate
from ddpsim.simulator.verdict import Finding, Verdict, combine
from ddpsim.simulator.waits import CallWait


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


SiteOf = Callable[[Issue], Site]
"""The line that stands for a call. Whether calls that meet come from one line decides hazards, and who is blamed."""


def check(program: Program, *, site_of: SiteOf | None = None) -> CheckedProgram:
    """Find what goes wrong in a program. By default the line of a call is its name and the name's number: `loss:3`.

    Raises UsageError if ranks could not run it.
    """
    validate(program)
    run = _Run(program, site_of or _sites_by_name(program))
    run.to_its_end()
    ends = tuple(rank.end() for rank in run.ranks)
    return CheckedProgram(run.all_findings(), ends, tuple(run.met), tuple(run.clashing))


def signature_of(issue: Issue) -> Signature:
    """What must agree across the ranks of a call."""
    splits = issue.splits
    if OPERATIONS[issue.operation].splits is Splits.TENSORS:
        lengths = tuple(prod(shape) for shape in issue.shapes)
        splits = (lengths, lengths)
    return Signature(issue.operation, issue.shapes, issue.dtype, issue.reduction, issue.root, splits)


def _sites_by_name(program: Program) -> SiteOf:
    issued = [step.name for steps in program.ranks for step in steps if isinstance(step, Issue)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(issued), start=1)}
    return lambda issue: Site(issue.name, numbers[issue.name], "")


class _Run:
    """One simulated run of all ranks."""

    def __init__(self, program: Program, site_of: SiteOf) -> None:
        self.ranks = [Progress(rank, program.groups, steps) for rank, steps in enumerate(program.ranks)]
        self.met: list[tuple[Met, ...]] = []
        self.clashing: list[tuple[Met, ...]] = []
        self._site_of = site_of
        self._slots = SlotTable()
        for group, members in members_of(program).items():
            self._slots.declare(group, members)
        self._messages = PointToPointTable()
        self._issued: list[Call] = []
        self._issues: dict[Call, Issue] = {}
        self._complete: set[Call] = set()
        """Only asked about, never walked through."""
        self._crashed: list[int] = []
        self._noticed: list[Noticed] = []
        self._found: list[Finding] = []
        self._steps = 0

    # --- the order ----------------------------------------------------------------------------------------------------

    def to_its_end(self) -> None:
        """Run every rank as far as possible."""
        rank: Progress | None = self.ranks[0]
        while rank is not None:
            while rank.state is None and not self._found:
                self._go_on(rank)
            rank = self._next(rank.rank)
        if not self._found and any(rank.state is RankState.WAITING for rank in self.ranks):
            for calls, finding in early_mismatches(self._slots, self._steps, self._issued):
                self._clash(calls, finding)
            self._found.extend([] if self._found else deadlocks(WaitGraph(self._snapshot())))

    def _next(self, rank: int) -> Progress | None:
        if self._found:
            return None
        in_a_circle = (*self.ranks[rank:], *self.ranks[:rank])
        return next((each for each in in_a_circle if each.state is None), None)

    def _go_on(self, rank: Progress) -> None:
        self._steps += 1
        if rank.to_create:
            self._create(rank, rank.to_create.pop())
        elif rank.step == len(rank.steps):
            self._return(rank)
        else:
            self._do(rank, rank.steps[rank.step])
            if rank.state is None and not self._found:
                rank.step += 1

    def _create(self, rank: Progress, group: Group) -> None:
        call = rank.next_call(group.name, Signature("new_group", members=group.ranks), Site(group.name, 0, ""))
        self._arrive(call)
        self._wait(rank, call)

    def _do(self, rank: Progress, step: Step) -> None:
        if isinstance(step, Issue):
            self._issue(rank, step)
        elif isinstance(step, Wait):
            rank.unwaited.pop(step.name, None)
            self._wait(rank, rank.calls[step.name])
        elif isinstance(step, Return):
            self._return(rank)
        else:
            rank.state = RankState.RAISED
            self._crashed.append(rank.rank)

    def _return(self, rank: Progress) -> None:
        rank.state = RankState.RETURNED
        self._noticed += [Noticed(NoticedKind.UNWAITED, (call,)) for call in rank.unwaited.values()]

    def _wait(self, rank: Progress, call: Call) -> None:
        if call not in self._complete:
            rank.block(call)

    # --- matching -----------------------------------------------------------------------------------------------------

    def _issue(self, rank: Progress, issue: Issue) -> None:
        call = rank.next_call(issue.group, signature_of(issue), self._site_of(issue), peer=issue.peer, tag=issue.tag)
        rank.calls[issue.name] = rank.unwaited[issue.name] = call
        self._issued.append(call)
        self._issues[call] = issue
        if call.operation == "send":
            self._send(call)
        elif call.operation == "recv":
            self._receive(call)
        else:
            self._arrive(call)

    def _arrive(self, call: Call) -> None:
        slot = self._slots.arrive(call)
        if slot.is_full:
            self._fill(slot)

    def _fill(self, slot: Slot) -> None:
        calls = [slot.calls[rank] for rank in slot.members]
        code = disagreement(calls)
        if code is not None:
            self._clash(calls, mismatch(calls, code, self._steps, issued=self._issued))
            return
        if branches_meet(calls):
            self._noticed.append(Noticed(NoticedKind.LINES_MEET, tuple(calls)))
        self._meet(calls)

    def _send(self, send: Call) -> None:
        receive = self._messages.post_send(send)
        if receive is not None:
            self._exchange(send, receive)

    def _receive(self, receive: Call) -> None:
        candidates = self._messages.candidates(receive)
        if candidates:
            self._messages.take(candidates[0])
            self._exchange(candidates[0], receive)
        else:
            self._messages.post_receive(receive)

    def _exchange(self, send: Call, receive: Call) -> None:
        code = pair_disagreement(send, receive)
        if code is not None:
            self._clash((send, receive), pair_mismatch(send, receive, code, self._steps))
        else:
            self._meet((send, receive))

    def _meet(self, calls: Sequence[Call]) -> None:
        self._complete.update(calls)
        if calls[0] in self._issues:  # else they made a group
            self.met.append(self._sides(calls))
        for call in calls:
            waiter = self.ranks[call.rank]
            if waiter.wait is not None and waiter.wait.calls == (call,):
                waiter.wake()

    def _sides(self, calls: Sequence[Call]) -> tuple[Met, ...]:
        return tuple(Met(call.rank, self._issues[call]) for call in calls)

    # --- what is found ------------------------------------------------------------------------------------------------

    def _clash(self, calls: Sequence[Call], finding: Finding) -> None:
        self.clashing.append(self._sides(calls))
        self._found.append(finding)

    def _snapshot(self) -> Snapshot:
        stands = tuple(rank.snapshot() for rank in self.ranks)
        return Snapshot(stands, open_slots(self._slots, self._messages), self._steps, tuple(self._issued))

    def all_findings(self) -> tuple[Finding, ...]:
        """Crashes, then what ended the run, then hazards."""
        crashes = [rank_error(dict.fromkeys(self._crashed, ERROR), None, "", {})] if self._crashed else []
        have_returned = all(rank.state is RankState.RETURNED for rank in self.ranks)
        issued = [(call, call.rank) for call in self._issued]
        return (*crashes, *self._found, *hazards(WatchedRun(self._noticed, issued, have_returned)))


ERROR = f"{InjectedCrashError.__name__}: {CRASH}"
"""What a rank raises that crashes."""


class Progress:
    """The progress of one rank through its steps."""

    def __init__(self, rank: int, groups: Sequence[Group], steps: Sequence[Step]) -> None:
        self.rank = rank
        self.to_create = [group for group in reversed(groups) if rank in group.ranks]
        """The groups it makes before its first step, the next one last."""
        self.steps = steps
        self.step = 0
        self.state: RankState | None = None
        """None while it can go on."""
        self.wait: CallWait | None = None
        self.calls: dict[str, Call] = {}
        """By name."""
        self.unwaited: dict[str, Call] = {}
        self.last_call: Call | None = None
        self._sequences: Counter[tuple[str, bool]] = Counter()

    def next_call(self, group: str, signature: Signature, site: Site, *, peer: int | None = None, tag: int = 0) -> Call:
        """Return the call that the rank makes next; messages are counted separately from collectives."""
        count = (group, signature.operation in POINT_TO_POINT)
        call = Call(self.rank, group, self._sequences[count], signature, site, peer=peer, tag=tag)
        self._sequences[count] += 1
        self.last_call = call
        return call

    def block(self, call: Call) -> None:
        """The rank waits for a call until it is woken."""
        self.state, self.wait = RankState.WAITING, CallWait((call,), call.site)

    def wake(self) -> None:
        """The rank can continue."""
        self.state = self.wait = None

    def end(self) -> RankEnd:
        """Return where the rank stopped."""
        return RankEnd(self.state, self.step)

    def snapshot(self) -> RankSnapshot:
        """Return the rank's state, for the diagnosis."""
        assert self.state is not None
        error = ERROR if self.state is RankState.RAISED else ""
        return RankSnapshot(
            self.rank, self.state, self.wait, self.last_call, calls_made=self._sequences.total(), error=error
        )
