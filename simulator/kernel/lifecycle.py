"""Threads that ranks start, and how the tasks of a rank end."""

from __future__ import annotations

from ddpsim.simulator.accesses import Access, Mode, Object
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.requests import Cancel, Finish, Raised, RankError, Returned, SawEnd, StartThread, Wake
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.scheduler import Turns
from ddpsim.simulator.kernel.states import Change, Phase
from ddpsim.simulator.kernel.tasks import RankRecord, Script, Task


def all_threads_of(rank: int) -> Object:
    """Return the object that stands for the set of a rank's threads."""
    return ("thread", "all", rank)


class Lifecycle:
    """How the tasks of one execution begin, wake each other, and end."""

    def __init__(self, run: Run, turns: Turns) -> None:
        self._run = run
        self._turns = turns

    def start(self, me: Task, request: StartThread) -> int:
        """Handle a `StartThread` request: add a task for the thread, and return its number."""
        run, rank = self._run, me.rank
        task = Task(run.started, rank, request.name)
        rank.tasks.append(task)
        rank.has_started_threads = True
        if run.observer is not None:
            run.observer.touched(me.number, Access(all_threads_of(rank.rank), Mode.CONTRIBUTE))
        self._turns.add(task)
        if run.observer is not None:
            run.observer.started(me.number, task.number)
        run.record(EventKind.NOTE, text=f"starts thread {request.name!r}")
        return task.number

    def wake(self, me: Task, request: Wake) -> None:
        """Handle a `Wake` request: enable a waiting task."""
        self._turns.wake(request.number, from_outside=request.from_outside)

    def cancel(self, me: Task, request: Cancel) -> None:
        """Handle a `Cancel` request: let a thread of the caller's rank be unwound."""
        run, task = self._run, self._run.tasks.get(request.number)
        if task is None:  # the thread has already ended
            return
        if run.observer is not None and not task.is_finished:
            run.observer.cancelled(task.number)
        self._turns.wake(task.number)
        task.change(Change.CANCEL)

    def saw_end(self, me: Task, request: SawEnd) -> None:
        """Handle a `SawEnd` request: report to the exploration that the caller saw a thread end."""
        if self._run.observer is not None:
            self._run.observer.joined(me.number, request.number)

    def on_finish(self, me: Task, request: Finish) -> Script:
        """Handle a `Finish` request: the task gives the baton away and never gets it back."""
        self._turns.end(me, request.how)
        if me.is_main and self._run.connections is not None:
            self._run.connections.rank_ended(me.rank)
        yield from self.go_on_after(me)

    def returned(self, me: Task, request: Returned) -> None:
        """Handle a `Returned` request: the rank's program returned."""
        self._run.record(EventKind.RETURN)

    def raised(self, me: Task, request: Raised) -> None:
        """Handle a `Raised` request: the rank's program raised an exception."""
        me.rank.error = request.error
        self._run.record(EventKind.RAISE, text=request.error.kind)

    def lose(self, rank: RankRecord, error: RankError | None) -> bool:
        """End all tasks of a rank that has disappeared. True if the running task was one of them.

        Without an error, its program ended normally.
        """
        run = self._run
        was_running = run.running is not None and run.running.rank is rank
        how = Change.RETURN if error is None else Change.RAISE
        if run.life.phase is Phase.RUNNING:
            rank.error = error
            running, run.running = run.running, rank.main
            if error is None:
                run.record(EventKind.RETURN)
            else:
                run.record(EventKind.RAISE, text=error.kind)
            run.running = running
        for task in tuple(rank.tasks):
            for script in task.scripts:
                script.close()
            task.scripts.clear()
            self._turns.end(task, how if task.is_main else Change.UNWIND)
        if error is None and run.connections is not None:
            run.connections.rank_ended(rank)
        return was_running

    def go_on_after(self, me: Task) -> Script:
        """Give the baton away from a task that has ended."""
        successor = yield from self._turns.next(me.number)  # this asks the policy, which may need an interrupt
        if successor is None:
            self._run.life.end()
        yield self._turns.switch(successor)
