"""Pauses of a running task (a rank's program or thread): let others run first, or wait for another or the clock."""

from collections import Counter
from collections.abc import Sequence

from ddpsim.simulator.accesses import Access, Accesses, AccessMode
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.answers import DeliverCompletion
from ddpsim.simulator.kernel.endings import stop_at_limit
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.scheduler import Scheduler
from ddpsim.simulator.kernel.states import RunEnding, TaskChange, TaskState
from ddpsim.simulator.kernel.tasks import Script, Task
from ddpsim.simulator.kernel.time_outs import DueWaits
from ddpsim.simulator.matching.slots import call_object
from ddpsim.simulator.waits import CallWait, ClockWait, LockWait, StoreWait, ThreadWait, Wait

_WAIT, _DONE, _TIMED_OUT = EventKind.WAIT, EventKind.DONE, TaskState.TIMED_OUT  # faster to look up, see scheduler.py

_CLOCK_READS_PER_POLL = 1_000
"""A program that reads the clock so often in a row, and does nothing else, is taken to wait for time to pass."""

_STANDING_TURNS = 100
"""A rank reads the clock in so many turns while no time passes; then it is taken to compute until a time has come."""
_TURN_SECONDS = 0.04
"""Virtual seconds for which each further turn computes."""
_AHEAD_SECONDS = 0.05
"""By so much the clocks of odd ranks are fast then, so that they leave the loop a turn earlier."""

_STEPS_PER_SLEEP = 2
_SLEEPS_PER_POLL = 10
_MOST_BLIND_LOOKS = 1_000
"""A sleep that only leads to the next sleep counts as so many failed polls."""


class PauseRequests:
    """Serves requests at which a task (a rank's program or thread) may pause. The rest of the kernel uses it, too."""

    def __init__(self, run: RunState, turns: Scheduler) -> None:
        self._run = run
        self._turns = turns
        self._most_steps = run.budget.steps
        self._clock_reads = 0
        self._clock_read_at = 0
        self._stands_at, self._standing_turns = 0.0, 0
        """The virtual time at the last reading of the clock, and the turns in which it was read since time passed."""
        self._readers: dict[int, int] = {}
        """The ranks that have read the clock in this turn, with the run's steps then."""
        self._blind_looks = Counter[tuple[int, int]]()
        """By rank and handle, how often a rank looked at a complete call that its backend does not show as complete."""
        self._sleeps: dict[int, int] = {}
        """By task, how often it has slept since anything but sleeps happened."""
        self._in_vain = 0
        """The run's steps then, and those of sleeps and failed polls since then."""
        self._changes = 0
        """The number of changed values in the store, and of calls, then."""
        self.changed_values = 0

    def on_block(self, me: Task, request: ask.Block) -> Script:
        """Answer a rank's `Block` request: wait until another rank or thread wakes the caller."""
        wait = request.wait
        if not isinstance(wait, ThreadWait):
            return (yield from self.block_task(me, wait, request.timeout_seconds))
        other = self._run.tasks[wait.thread]
        other.joiners.append(me.number)
        try:
            return (yield from self.block_task(me, wait, request.timeout_seconds))
        finally:
            other.joiners.remove(me.number)

    def on_await_outside(self, me: Task, request: ask.AwaitOutside) -> Script:
        """Answer a rank's `AwaitOutside` request, after the rank has looked in vain."""
        run, turns = self._run, self._turns
        if request.is_first:
            run.observer.used_feature("waits outside the simulation")
            run.observer.about_to_access(me.number, ())
        turns.await_outside(me, request)
        successor = yield from turns.next_task(me.number)
        if successor == me.number:
            turns.check_not_unwinding(me)
        else:
            yield turns.switch_to(successor)
        in_time = me.state is not _TIMED_OUT
        if not in_time:
            me.change_state(TaskChange.GO_ON)
        yield from self._deliver_completions(me)
        return turns.real_seconds_allowed if in_time else None

    def on_read_clock(self, me: Task, request: ask.ReadClock) -> float | Script:
        """Answer a rank's `ReadClock` request: return the virtual time in seconds."""
        run = self._run
        self._clock_reads = self._clock_reads + 1 if run.steps == self._clock_read_at else 0
        self._clock_read_at = run.steps
        if self._clock_reads >= _CLOCK_READS_PER_POLL:
            return self._poll_clock(me)
        rank = me.rank.rank
        if run.clock.now != self._stands_at:
            self._standing_turns = 0
            self._readers.clear()
        elif self._readers.get(rank, run.steps) != run.steps:
            self._standing_turns += 1
            self._readers.clear()
            run.clock.add_seconds(_TURN_SECONDS * (self._standing_turns > _STANDING_TURNS))
        self._stands_at, self._readers[rank] = run.clock.now, run.steps
        is_ahead = self._standing_turns > _STANDING_TURNS and rank % 2
        return run.clock.now + is_ahead * _AHEAD_SECONDS

    def _poll_clock(self, me: Task) -> Script:
        yield from self.poll_task(me)
        return self._run.clock.now

    def on_wait_for(self, me: Task, request: ask.WaitFor) -> bool | Script:
        """Answer a rank's `WaitFor` request: wait until one of the rank's calls is complete."""
        handles = request.handles
        successor = self._turns.yield_point(me)
        if successor is None and not self._run.is_observed and not me.rank.delivering:
            open_calls = me.rank.open
            for handle in handles:
                if handle not in open_calls:
                    return True
        return self._wait_for(me, handles, request.timeout_seconds, successor)

    def _wait_for(
        self, me: Task, handles: tuple[int, ...], timeout_seconds: float | None, successor: int | None
    ) -> Script:
        if successor is not None:
            yield from self.wait_for_turn(me, successor)
        run, open_calls = self._run, me.rank.open
        waited = tuple([open_calls[handle].call for handle in handles if handle in open_calls])
        if len(waited) < len(handles):
            if run.is_observed or me.rank.delivering:
                yield from self._see_completions(me, handles)
            return True
        run.record_event(_WAIT, waited[0])
        in_time = yield from self.block_task(me, CallWait(waited), timeout_seconds)
        if not in_time and run.is_observed:
            for call in waited:
                run.observer.accessed(me.number, Access(call_object(call), AccessMode.READ))
        # A call may have completed at the instant of the time-out.
        in_time = in_time or not all(handle in open_calls for handle in handles)
        if run.is_observed or me.rank.delivering:
            yield from self._see_completions(me, handles)
        run.record_event(_DONE, waited[0], "" if in_time else "timed out")
        if not in_time and self._turns.time_outs.closes_connections(waited[0]):
            yield from self._turns.expire(DueWaits(run.clock.now, (open_calls[handles[0]],), (), timeout_seconds))
        return in_time

    def on_is_complete(self, me: Task, request: ask.IsComplete) -> bool | Script:
        """Answer a rank's `IsComplete` request: return whether a call is complete."""
        look = request.look
        if request.handle in me.rank.open:
            return self._check_completion(me, request, self.poll_task(me, (look,)))
        successor = self._turns.yield_point(me, (look,))
        if successor is None and not self._run.is_observed and not request.is_blind:
            return True
        return self._check_completion(me, request, () if successor is None else self.wait_for_turn(me, successor))

    def _check_completion(self, me: Task, request: ask.IsComplete, pause: Script | tuple[()]) -> Script:
        yield from pause
        is_complete = request.handle not in me.rank.open
        self._run.observer.accessed(me.number, request.look)
        if is_complete:
            self._run.observer.saw_completion(me.number, (me.rank.rank, request.handle))
        if is_complete and request.is_blind:
            self._blind_looks[me.rank_number, request.handle] += 1
            if (looks := self._blind_looks[me.rank_number, request.handle]) > _MOST_BLIND_LOOKS:
                yield from stop_at_limit(self._run, RunEnding.BLIND, me, looks)
        return is_complete

    def _see_completions(self, me: Task, handles: Sequence[int]) -> Script:
        """Record for the exploration of schedules that the caller sees calls complete; wait for threads that run
        callbacks of these calls."""
        rank = me.rank
        for handle in handles:
            if handle not in rank.open:
                self._run.observer.saw_completion(me.number, (rank.rank, handle))
        while any(task is not me and handle in handles for handle, task in rank.delivering):
            yield from self.poll_task(me)

    def pass_checkpoint(self, me: Task, intent: Accesses = ()) -> Script:
        """Let other threads run before the caller's accesses `intent`, then run callbacks of completed calls."""
        successor = self._turns.yield_point(me, intent)
        if successor is not None:
            yield from self.wait_for_turn(me, successor)

    def wait_for_turn(self, me: Task, successor: int) -> Script:
        """Let the task `successor` (a program or thread of a rank) run, and return when the caller's turn comes."""
        if successor != me.number:
            yield self._turns.switch_to(successor)
        if self._run.steps > self._most_steps:
            yield from stop_at_limit(self._run, RunEnding.STEPS, me)
        if me.rank.completed:
            yield from self._deliver_completions(me)

    def poll_task(self, me: Task, intent: Accesses = (), steps: int = 1) -> Script:
        """Let all other tasks (programs and threads of ranks) run first, because a check of the caller, of so many
        steps, has failed."""
        run, turns = self._run, self._turns
        self._in_vain += steps
        if run.is_observed:
            run.observer.about_to_access(me.number, intent, looks_again=True)
        if turns.failed_poll_rounds and (due := turns.time_outs.find_due(run.clock.now)) is not None:
            yield from turns.expire(due)
        successor = turns.next_after_poll(me)
        if successor != me.number:
            yield turns.switch_to(successor)
        # Checked now, and not before the switch: another task may have made progress.
        if turns.failed_poll_rounds > run.budget.polls:
            yield from stop_at_limit(run, RunEnding.POLLS, me, turns.failed_poll_rounds)
        if run.steps > self._most_steps:
            yield from stop_at_limit(run, RunEnding.STEPS, me)
        if me.rank.completed:
            yield from self._deliver_completions(me)

    def block_task(self, me: Task, wait: Wait, timeout_seconds: float | None = None) -> Script:
        """Wait until another task (a rank's program or thread) wakes this one. False if the time-out passed first."""
        run, turns = self._run, self._turns
        if run.is_observed:
            run.observer.about_to_access(me.number, _accesses_after_wait(wait, has_alarm=timeout_seconds is not None))
        answer = turns.suspend_task(me, wait, timeout_seconds)
        if answer is None:
            successor = yield from turns.next_task(me.number)
            if successor == me.number:
                turns.check_not_unwinding(me)
            else:
                answer = turns.switch_to(successor)
        if answer is not None:
            yield answer
        in_time = me.state is not _TIMED_OUT
        if not in_time:
            me.change_state(TaskChange.GO_ON)
        if me.rank.completed:
            yield from self._deliver_completions(me)
        return in_time

    def sleep_task(self, me: Task, seconds: float) -> Script:
        """Wait until so many seconds of virtual time have passed."""
        if not seconds:
            yield from self.poll_task(me)
            return
        yield from self.pass_checkpoint(me)
        run, sleeps = self._run, self._sleeps
        changes = self.changed_values + len(run.issued)
        # Other tasks may be in the middle of a poll, whose steps are not yet known to be in vain.
        if changes > self._changes or run.steps - self._in_vain > _STEPS_PER_SLEEP * len(run.tasks):
            sleeps.clear()
            self._changes, self._in_vain = changes, run.steps
        self._in_vain += _STEPS_PER_SLEEP
        sleeps[me.number] = count = sleeps.get(me.number, 0) + 1
        is_in_vain = me.is_main and count * _SLEEPS_PER_POLL > run.budget.polls  # of threads the scheduler says so
        if is_in_vain and all(sleeps.get(each, 0) > 1 for each in run.clock.live):
            yield from stop_at_limit(run, RunEnding.SLEEPS, me, count)
            sleeps.clear()
        run.record_event(EventKind.SLEEP, text=repr(seconds))
        yield from self.block_task(me, ClockWait(seconds), seconds)

    def _deliver_completions(self, me: Task) -> Script:
        """Let the running task set the futures of its rank's completed calls and run their callbacks, in the order of
        completion. Any thread of the rank may do so, as it may wait for a call that another thread issued."""
        completed, delivering = me.rank.completed, me.rank.delivering
        while completed:
            entry = completed.pop(0), me
            delivering.append(entry)
            try:
                yield DeliverCompletion(entry[0])
            finally:
                delivering.remove(entry)


def _accesses_after_wait(wait: Wait, *, has_alarm: bool) -> Accesses:
    """Return the objects that a task (a rank's program or thread) accesses after a wait or the wait's time-out."""
    if isinstance(wait, StoreWait):
        return tuple(Access(("key", key), AccessMode.READ) for key in wait.keys)
    if isinstance(wait, LockWait):
        return (Access(wait.lock, AccessMode.READ if has_alarm else AccessMode.CONTRIBUTE),)
    if isinstance(wait, CallWait) and has_alarm:
        return tuple(Access(call_object(call), AccessMode.READ) for call in wait.calls)
    return ()
