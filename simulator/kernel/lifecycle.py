"""Threads that ranks start, and how a rank's program and threads end."""

from ddpsim.simulator.accesses import Access, AccessMode, Object
from ddpsim.simulator.events import EXITED_AT_ONCE, EventKind
from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.endings import CallerStopped
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.scheduler import Scheduler
from ddpsim.simulator.kernel.states import RunPhase, TaskChange
from ddpsim.simulator.kernel.tasks import RankRecord, Script, Task


def threads_object(rank: int) -> Object:
    """Return the name that the exploration of schedules uses for the set of a rank's threads."""
    return ("thread", "all", rank)


class TaskLifecycle:
    """How tasks (programs and threads of ranks) begin, wake each other, and end, in one run."""

    def __init__(self, run: RunState, turns: Scheduler) -> None:
        self._run = run
        self._turns = turns

    def on_start_thread(self, me: Task, request: ask.StartThread) -> int:
        """Answer a rank's `StartThread` request: record the new thread, and return its number."""
        run, rank = self._run, me.rank
        task = Task(run.started, rank, request.name, request.is_daemon)
        rank.tasks.append(task)
        rank.has_started_threads = True
        run.observer.accessed(me.number, Access(threads_object(rank.rank), AccessMode.CONTRIBUTE))
        self._turns.add_task(task)
        run.observer.started_thread(me.number, task.number)
        run.record_event(EventKind.NOTE, text=f"starts thread {request.name!r}")
        return task.number

    def on_cancel_thread(self, me: Task, request: ask.CancelThread) -> None:
        """Answer a rank's `CancelThread` request: a thread of the caller's rank has to end early."""
        task = self._run.tasks.get(request.number)
        if task is None:  # the thread has already ended
            return
        if not task.is_finished:
            self._run.observer.cancelled_thread(task.number)
        self._turns.wake_task(task.number)
        task.change_state(TaskChange.CANCEL)

    def on_finish_task(self, me: Task, request: ask.FinishTask) -> Script:
        """Answer a rank's `FinishTask` request: the calling program or thread has ended, and another one runs."""
        self._turns.end_task(me, request.how)
        if me.is_main and self._run.connections is not None:
            self._run.connections.rank_ended(me.rank)
        yield from self.switch_from_ended_task(me)

    def on_program_raised(self, me: Task, request: ask.ProgramRaised) -> Script | None:
        """Answer a rank's `ProgramRaised` request: the rank's program raised an exception."""
        if self._run.life.fail_trial():
            return self._unwind_in_order()
        me.rank.error = request.error
        self._run.note_failure()
        self._run.record_event(EventKind.RAISE, text=request.error.kind)
        return None

    def _unwind_in_order(self) -> Script:
        yield self._turns.switch_to(self._turns.next_unfinished_task())
        raise CallerStopped

    def remove_lost_rank(self, rank: RankRecord, error: ask.RankError | None) -> bool:
        """End all programs and threads of a rank whose process disappeared. True if one of them was running. `error` is
        None if the rank's program had ended normally."""
        run = self._run
        was_running = run.running is not None and run.running.rank is rank
        how = TaskChange.RETURN if error is None else TaskChange.RAISE
        if error is not None:
            run.life.fail_trial()
        if run.life.phase is RunPhase.RUNNING:
            rank.error = error
            if error is not None:
                run.note_failure()
            running, run.running = run.running, rank.main
            if error is None:
                run.record_event(EventKind.RETURN, text=EXITED_AT_ONCE)
            else:
                run.record_event(EventKind.RAISE, text=error.kind)
            run.running = running
        for task in tuple(rank.tasks):
            for script in task.scripts:
                script.close()
            task.scripts.clear()
            if not task.is_finished:
                self._turns.end_task(task, how if task.is_main else TaskChange.UNWIND)
        if error is None and run.connections is not None:
            run.connections.rank_ended(rank)
        return was_running

    def switch_from_ended_task(self, me: Task) -> Script:
        """Let the next task (a rank's program or thread) run, after one has ended."""
        successor = yield from self._turns.next_task(me.number)  # this asks the policy, which may need an interrupt
        if successor is None:
            self._run.life.mark_ended()
        yield self._turns.switch_to(successor)
