"""How a run stops, and the findings that tell the user why."""

import dataclasses
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.advice.facts import Advice
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks, lines_of_ranks, waiting_lines
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankState, Snapshot
from ddpsim.simulator.diagnosis.mismatch import find_early_mismatches
from ddpsim.simulator.diagnosis.rank_errors import ClosedConnection
from ddpsim.simulator.diagnosis.uneven import add_batch_counts
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.events import NOT_EXPLORED, EventKind
from ddpsim.simulator.kernel import answers
from ddpsim.simulator.kernel.requests import StackReport
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.kernel.tasks import IssuedCall, Script, Task
from ddpsim.simulator.kernel.time_outs import TimeOuts
from ddpsim.simulator.policies.observer import Observer
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.waits import BUILD_LOCK, OutsideWait
from ddpsim.simulator.wording import LabelledLine, count_with_noun, join_names

_IN_BUILD = "in _write_ninja_file_and_build_library\n"
_IN_EVENT_LOOP = re.compile(r"[/\\]asyncio[/\\]base_events\.py\", line \d+, in _run_once\n")
"""Matches the stack of a thread in which an asyncio event loop runs."""
_MOST_TRIED = 100
"""So many waits for ended ranks may end by errors that programs catch: one that always tries again does not end."""


class CallerStopped(Exception):
    """Raised while the kernel serves a request: the caller gets an answer after which its program does not continue."""

    def __init__(self, answer: answers.Unwind | answers.RaiseFault | answers.RejectRequest = answers.UNWIND) -> None:
        super().__init__()
        self.answer = answer


def end_with_findings(run: RunState, ending: RunEnding, *findings: Finding) -> NoReturn:
    """Stop the run with findings; the calling rank's program is ended early. What it meets on the way is no finding."""
    if run.life.phase is RunPhase.RUNNING:
        run.findings.extend(add_batch_counts(findings, run.batch_counts()))
    run.waiting = WaitGraph(run.snapshot()).list_waiting()
    assert run.running is not None
    run.observer.run_cut_short(run.running.number)
    run.life.begin_stop(ending)
    raise CallerStopped


def stop_without_enabled_task(
    run: RunState, time_outs: TimeOuts, fail_calls: Callable[[Sequence[tuple[IssuedCall, answers.CallFailure]]], Script]
) -> Generator[answers.Answer, Any, bool]:
    """Stop, as no task (a rank's program or thread) can run and no time-out is pending. Report why tasks wait, if any
    do. Return True instead if a thread outside the simulation woke a task, or if a program may catch the error that
    gloo raises where it waits for a rank that has ended."""
    if all(rank.main.is_finished for rank in run.ranks):
        run.life.begin_stop(RunEnding.FINISHED)
        return False
    if (yield answers.AwaitExternalThreads()).woke_a_rank:
        return True
    alone = time_outs.list_left_alone()
    if run.life.end_trial is None:
        try:
            found = _find_deadlock(run)
        except Exception as error:  # a bug in ddpsim, but the other ranks must not sleep forever
            run.life.abort_with_internal_error(error, None if run.running is None else run.running.rank.rank)
            return False
        if alone and all(each.code is Code.DEADLOCK_MISSING_RANK for each in found):
            _begin_trial(run, found)
        else:
            run.findings.extend(found)
    run.tried += len(alone)
    if run.life.end_trial is None or not alone or run.tried > _MOST_TRIED:
        run.life.begin_stop(RunEnding.DEADLOCK)
        return False
    for issued, failure in alone:
        assert isinstance(failure.reason, ClosedConnection)
        call = issued.call
        text = (
            f"{NOT_EXPLORED}rank {call.rank} waits for rank {failure.reason.rank} ({call.operation} at {call.site}), "
            "whose program has ended: on gloo the wait raises an error, which was caught here"
        )
        run.record_event(EventKind.NOTE, text=text)
    yield from fail_calls(alone)
    return True


def _find_deadlock(run: RunState) -> Sequence[Finding]:
    names = run.tensor_names()
    mismatches = [finding for _, finding in find_early_mismatches(run.slots, run.steps, run.all_calls(), names)]
    graph = WaitGraph(run.snapshot())
    run.waiting = graph.list_waiting()
    return tuple(add_batch_counts(mismatches or find_deadlocks(graph), run.batch_counts(), run.all_calls()))


def _begin_trial(run: RunState, found: Sequence[Finding]) -> None:
    """Let the ranks go on after a deadlock, which is reported unless all of them now end normally."""
    findings, waiting = (*run.findings, *found), run.waiting
    events, issued, noticed = len(run.events), len(run.issued), len(run.noticed)
    steps, now = run.steps, run.clock.now

    def end_trial(has_passed: bool) -> None:
        if not has_passed:
            run.findings[:], run.waiting = findings, waiting
            del run.events[events:], run.issued[issued:], run.noticed[noticed:]
            run.steps, run.clock.now = steps, now

    run.life.end_trial, run.waiting = end_trial, ()
    run.observer, run.is_observed = Observer(), False  # the exploration of schedules ends here


def stop_at_limit(
    run: RunState, ending: RunEnding, me: Task, polls: int = 0
) -> Generator[answers.Answer, StackReport, None]:
    """Stop the run: it takes too many steps, or a rank checks in vain again and again while no other can run. Go on if
    it sleeps while processes that it has started run."""
    stack = yield answers.ReportStack()
    if ending is RunEnding.SLEEPS and stack.has_children:
        return
    end_with_findings(run, ending, limit_finding(run, ending, me, stack, polls=polls))


def limit_finding(
    run: RunState, ending: RunEnding, task: Task | None, stack: StackReport | None, *, polls: int = 0
) -> Finding:
    """Return the finding that a time or step limit has passed, or that the run was interrupted.

    It lists what the other ranks wait for, a possible reason. At a wall-time limit ranks may still run while the
    finding is made, so its lines may describe different instants.
    """
    budget = run.budget
    cause: Advice[[]] | None
    if ending is RunEnding.STUCK and task is not None and isinstance(task.wait, OutsideWait) and task.wait.is_of_ranks:
        summary, cause = f"{task} waits for {task.wait}, which a rank holds that cannot go on", Cause.FILE_LOCK_HELD
    elif ending is RunEnding.STUCK and task is not None and isinstance(task.wait, OutsideWait):
        held = f", which process {join_names(list(map(str, task.wait.holders)))} holds" if task.wait.holders else ""
        summary = f"{task} has waited for {task.wait} for {budget.stuck_seconds:g} s{held}"
        cause = Cause.BUILD_NEVER_ENDS if task.wait.what.startswith(BUILD_LOCK) else Cause.BLOCKED_OUTSIDE
    elif ending is RunEnding.STUCK:
        summary = f"{task} has been blocked outside the simulation for {budget.stuck_seconds:g} s"
        cause = Cause.BLOCKED_AT_LOCK if stack is not None and stack.is_at_lock else Cause.BLOCKED_OUTSIDE
    else:
        summary, cause = {
            RunEnding.SECONDS: (f"the run took longer than {budget.seconds:g} s of wall time", Cause.OUT_OF_TIME),
            RunEnding.STEPS: (f"the run took more than {budget.steps} steps", Cause.OUT_OF_STEPS),
            RunEnding.POLLS: (
                f"{task} polled {polls} times in a row while no other rank could run",
                Cause.POLLS_IN_VAIN,
            ),
            RunEnding.BLIND: (
                f"{task} called is_completed() {polls} times on a call that is complete",
                Cause.SEEN_IN_WAIT,
            ),
            RunEnding.SLEEPS: (
                f"{task} slept {polls} times in a row while nothing else happened",
                Cause.SLEEPS_IN_VAIN,
            ),
            RunEnding.INTERRUPTED: (
                f"the run was interrupted, after {count_with_noun(run.steps, 'step')} and "
                f"{count_with_noun(len(run.issued), 'call')}",
                None,
            ),
        }[ending]
    if ending in (RunEnding.STUCK, RunEnding.SECONDS) and stack is not None and _IN_EVENT_LOOP.search(stack.text):
        cause = Cause.ASYNCIO_TURNS
    elif ending is RunEnding.SECONDS and stack is not None and _IN_BUILD in stack.text:
        summary, cause = f"{summary}, in which {task} compiles an extension", Cause.COMPILES
    kind, code = ("STUCK", Code.STUCK) if ending in (RunEnding.STUCK, RunEnding.BLIND) else ("UNKNOWN", Code.BUDGET)
    snapshot = run.snapshot()
    where = (_lines_of_all_ranks if ending in (RunEnding.INTERRUPTED, RunEnding.SLEEPS) else waiting_lines)(snapshot)
    lines: list[str | LabelledLine] = [f"{kind}  {code}", f"  {summary}", *where]
    if task is not None and stack is not None:
        lines += [f"  stack of {task}", *("  " + line for line in stack.text.splitlines())]
    lines += () if cause is None else cause.lines()
    return Finding(code, () if task is None else (task.rank.rank,), summary, tuple(lines))


def _lines_of_all_ranks(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a line for each rank: what it waits for, how it ended, or after which call it computes, or could run."""
    ranks = [
        dataclasses.replace(each, state=RankState.SILENT)
        if each.wait is None and each.state is RankState.WAITING
        else each
        for each in snapshot.ranks
    ]
    return lines_of_ranks(dataclasses.replace(snapshot, ranks=tuple(ranks)), range(len(ranks)))
