"""Checks a program without running it: which calls match, which ranks wait forever, and why. Takes about 2 ms.

Matching, diagnosis and order of execution are those of the simulator: a rank continues until it has to wait, then the
next rank that can continue runs, in rank order. A receive from any source takes the message of the lowest rank. So
`check_program` finds what `simulate` finds, except for errors in data.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankSnapshot, RankState, Snapshot, collect_open_calls
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind, WatchedRun, find_hazards
from ddpsim.simulator.diagnosis.mismatch import find_early_mismatches, message_mismatch_finding, mismatch_finding
from ddpsim.simulator.diagnosis.rank_errors import rank_error_finding
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.matching.agreement import (
    are_unusual_lines_matched,
    first_differing_field,
    message_differing_field,
)
from ddpsim.simulator.matching.slots import PendingCollectives, UnmatchedMessages
from ddpsim.simulator.operations import OPERATIONS, POINT_TO_POINT, SplitRule
from ddpsim.simulator.programs.program import CRASH, Group, Issue, Program, Return, Step, Wait
from ddpsim.simulator.programs.validation import members_of, validate_program
from ddpsim.simulator.verdict import Finding, Verdict, worst_verdict_of_findings
from ddpsim.simulator.waits import CallWait


class RankEnd(NamedTuple):
    """Where and in which state a rank stopped."""

    state: RankState | None
    """None if the rank could have continued when a mismatch ended the run."""
    step: int
    """The index of the step in which the rank stopped; the number of all its steps if it completed them."""


class MatchedCall(NamedTuple):
    """One rank's call among calls that were matched with each other."""

    rank: int
    issue: Issue


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """The result of checking a program."""

    findings: tuple[Finding, ...]
    ends: tuple[RankEnd, ...]
    met: tuple[tuple[MatchedCall, ...], ...]
    """The matched calls that agree, in order of their matches; within these by group rank (send before recv)."""
    clashing: tuple[tuple[MatchedCall, ...], ...]
    """The matched calls that disagree, that is, mismatches."""

    @property
    def verdict(self) -> Verdict:
        """Fail if some finding is a failure, otherwise pass."""
        return worst_verdict_of_findings(self.findings)

    def __str__(self) -> str:
        """Return all findings as text; for a program that passes, the verdict comes first."""
        parts = [finding.body for finding in self.findings]
        passed = [f"PASS  {len(self.met)} calls were matched"] if self.verdict is Verdict.PASS else []
        return "\n\n".join(passed + parts)


SiteOf = Callable[[Issue], Site]
"""Returns the source line of a call. Hazards and blame depend on whether matched calls have the same line."""


def check_program(program: Program, *, site_of: SiteOf | None = None) -> CheckedProgram:
    """Find the errors of a program.

    By default, the line of a call is the call's name and the number in the name: `loss:3`. Raises UsageError if ranks
    could not run the program.
    """
    validate_program(program)
    run = _CheckRun(program, site_of or _map_names_to_sites(program))
    run.run_ranks()
    ends = tuple(RankEnd(rank.state, rank.step) for rank in run.ranks)
    return CheckedProgram(run.all_findings(), ends, tuple(run.met), tuple(run.clashing))


def _map_names_to_sites(program: Program) -> SiteOf:
    issued = [step.name for steps in program.ranks for step in steps if isinstance(step, Issue)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(issued), start=1)}
    return lambda issue: Site(issue.name, numbers[issue.name], "")


class _CheckRun:
    def __init__(self, program: Program, site_of: SiteOf) -> None:
        self.ranks = [RankProgress(rank, program.groups, steps) for rank, steps in enumerate(program.ranks)]
        self.met: list[tuple[MatchedCall, ...]] = []
        self.clashing: list[tuple[MatchedCall, ...]] = []
        self._site_of = site_of
        self._slots = PendingCollectives()
        for group, members in members_of(program).items():
            self._slots.declare_group(group, members)
        self._messages = UnmatchedMessages()
        self._issues: dict[Call, Issue] = {}
        """All calls so far, in order, each with its step."""
        self._complete: set[Call] = set()
        self._crashed: list[int] = []
        self._noticed: list[Noticed] = []
        self._found: list[Finding] = []
        self._steps = 0

    def run_ranks(self) -> None:
        """Run every rank as far as possible."""
        rank: RankProgress | None = self.ranks[0]
        while rank is not None and not self._found:
            self._advance_rank(rank)
            round_robin = (*self.ranks[rank.rank :], *self.ranks[: rank.rank])
            rank = next((each for each in round_robin if each.state is None), None)
        if not self._found and any(rank.state is RankState.WAITING for rank in self.ranks):
            for calls, finding in find_early_mismatches(self._slots, self._steps, list(self._issues)):
                self._record_mismatch(calls, finding)
            self._found.extend([] if self._found else find_deadlocks(WaitGraph(self._deadlock_snapshot())))

    def _advance_rank(self, rank: "RankProgress") -> None:
        self._steps += 1
        if rank.to_create:
            group = rank.to_create.pop()
            call = rank.next_call(group.name, Signature("new_group", members=group.ranks), Site(group.name, 0, ""))
            self._add_to_collective(call)
            self._wait_for_call(rank, call)
        elif rank.step == len(rank.steps):
            self._return_rank(rank)
        else:
            self._run_step(rank, rank.steps[rank.step])
            if rank.state is None and not self._found:
                rank.step += 1

    def _run_step(self, rank: "RankProgress", step: Step) -> None:
        if isinstance(step, Issue):
            self._issue_call(rank, step)
        elif isinstance(step, Wait):
            rank.unwaited.pop(step.name, None)
            self._wait_for_call(rank, rank.calls[step.name])
        elif isinstance(step, Return):
            self._return_rank(rank)
        else:
            rank.state = RankState.RAISED
            self._crashed.append(rank.rank)

    def _return_rank(self, rank: "RankProgress") -> None:
        rank.state = RankState.RETURNED
        self._noticed += [Noticed(NoticedKind.UNWAITED, (call,)) for call in rank.unwaited.values()]

    def _wait_for_call(self, rank: "RankProgress", call: Call) -> None:
        if call not in self._complete:
            rank.state, rank.wait = RankState.WAITING, CallWait((call,), call.site)

    def _issue_call(self, rank: "RankProgress", issue: Issue) -> None:
        splits = issue.splits
        if OPERATIONS[issue.operation].splits is SplitRule.TENSORS:
            lengths = tuple(map(prod, issue.shapes))
            splits = (lengths, lengths)
        signature = Signature(issue.operation, issue.shapes, issue.dtype, issue.reduction, issue.root, splits)
        call = rank.next_call(issue.group, signature, self._site_of(issue), peer=issue.peer, tag=issue.tag)
        rank.calls[issue.name] = rank.unwaited[issue.name] = call
        self._issues[call] = issue
        if call.is_point_to_point:
            self._post_message(call)
        else:
            self._add_to_collective(call)

    def _add_to_collective(self, call: Call) -> None:
        slot = self._slots.add_call(call)
        if not slot.is_full:
            return
        calls = [slot.calls[rank] for rank in slot.members]
        code = first_differing_field(calls)
        if code is not None:
            self._record_mismatch(calls, mismatch_finding(calls, code, self._steps, issued=list(self._issues)))
            return
        if are_unusual_lines_matched(calls):
            self._noticed.append(Noticed(NoticedKind.LINES_MEET, tuple(calls)))
        self._complete_calls(calls)

    def _post_message(self, call: Call) -> None:
        send, receive = call, None
        if call.operation == "send":
            receive = self._messages.post_send(call)
        elif candidates := self._messages.waiting_sends(call):
            send, receive = candidates[0], call
            self._messages.remove_send(send)
        else:
            self._messages.post_receive(call)
        if receive is None:
            return
        code = message_differing_field(send, receive)
        if code is not None:
            self._record_mismatch((send, receive), message_mismatch_finding(send, receive, code, self._steps))
        else:
            self._complete_calls((send, receive))

    def _complete_calls(self, calls: Sequence[Call]) -> None:
        self._complete.update(calls)
        if calls[0] in self._issues:  # otherwise they created a group
            self.met.append(self._matched_calls(calls))
        for call in calls:
            waiter = self.ranks[call.rank]
            if waiter.wait is not None and waiter.wait.calls == (call,):
                waiter.state = waiter.wait = None

    def _matched_calls(self, calls: Sequence[Call]) -> tuple[MatchedCall, ...]:
        return tuple(MatchedCall(call.rank, self._issues[call]) for call in calls)

    def _record_mismatch(self, calls: Sequence[Call], finding: Finding) -> None:
        self.clashing.append(self._matched_calls(calls))
        self._found.append(finding)

    def _deadlock_snapshot(self) -> Snapshot:
        ranks = tuple(rank.rank_snapshot() for rank in self.ranks)
        return Snapshot(ranks, collect_open_calls(self._slots, self._messages), self._steps, tuple(self._issues))

    def all_findings(self) -> tuple[Finding, ...]:
        """Return all findings: first crashes, then what ended the run, then hazards."""
        crashes = [rank_error_finding(dict.fromkeys(self._crashed, ERROR), None, "", {})] if self._crashed else []
        have_returned = all(rank.state is RankState.RETURNED for rank in self.ranks)
        issued = [(call, call.rank) for call in self._issues]
        return (*crashes, *self._found, *find_hazards(WatchedRun(self._noticed, issued, have_returned)))


ERROR = f"{InjectedCrashError.__name__}: {CRASH}"


class RankProgress:
    """The progress of one rank through its steps."""

    def __init__(self, rank: int, groups: Sequence[Group], steps: Sequence[Step]) -> None:
        self.rank = rank
        self.to_create = [group for group in reversed(groups) if rank in group.ranks]
        """The process groups to create before the first step, the next group last."""
        self.steps = steps
        self.step = 0
        self.state: RankState | None = None
        """The state in which the rank stopped; None while it can continue."""
        self.wait: CallWait | None = None
        self.calls: dict[str, Call] = {}
        self.unwaited: dict[str, Call] = {}
        self.last_call: Call | None = None
        self._sequences: Counter[tuple[str, bool]] = Counter()

    def next_call(self, group: str, signature: Signature, site: Site, *, peer: int | None = None, tag: int = 0) -> Call:
        """Return the rank's next call, numbered in its group. Messages are counted separately from collectives."""
        count = (group, signature.operation in POINT_TO_POINT)
        call = Call(self.rank, group, self._sequences[count], signature, site, peer=peer, tag=tag)
        self._sequences[count] += 1
        self.last_call = call
        return call

    def rank_snapshot(self) -> RankSnapshot:
        """Return the rank's state in the form that the diagnosis needs."""
        assert self.state is not None
        error = ERROR if self.state is RankState.RAISED else ""
        return RankSnapshot(self.rank, self.state, self.wait, self.last_call, error=error)
