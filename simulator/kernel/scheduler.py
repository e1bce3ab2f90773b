"""Turns: which tasks (programs and threads of ranks) are enabled, and which one runs next.

A task is enabled if it can take a step. If none is, the virtual clock advances to its next alarm. If it has no alarm,
the run stops (endings.py). The run also stops if the clock keeps waking only threads that ranks started while no other
task waits for it.

A task that has taken `TURN_STEPS` steps while others were enabled is treated as if it polled: by default the next task
runs. So a loop that waits for another rank, by whatever test, does not keep that rank from running under a policy that
mostly takes the default. The rule changes the options and not the policy, so a schedule means the same under any
policy.
"""

import math
import operator
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, overload

from ddpsim.simulator.accesses import Accesses
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Policy, RankOrThread
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel.answers import Answer, CallFailure, SwitchTask
from ddpsim.simulator.kernel.endings import CallerStopped, stop_at_limit, stop_without_enabled_task
from ddpsim.simulator.kernel.requests import CALLBACKS, AwaitOutside
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.states import RunEnding, RunPhase, TaskChange, TaskState, state_after
from ddpsim.simulator.kernel.tasks import IssuedCall, Script, Task
from ddpsim.simulator.kernel.time_outs import DueWaits, TimeOuts
from ddpsim.simulator.policies.named import RoundRobin
from ddpsim.simulator.waits import OutsideWait, Wait

# globals are faster to look up than members of an enum, and these are read at each context switch
_RUNNING, _CANCELLED, _WAITING = RunPhase.RUNNING, TaskState.CANCELLED, TaskState.WAITING
_WAIT, _WAKE, _RANK = TaskChange.WAIT, TaskChange.WAKE, ChoiceKind.RANK
_new = tuple.__new__

_MOST_TIMER_ROUNDS = 10_000
"""So many times in a row the clock may wake nothing but threads that ranks started; then the run stops."""

_TIMER_ROUNDS = 100
"""After so many it stops once some wait has lasted longer than its group allows."""

TURN_STEPS = 1_000
"""The number of steps in a row that a program or thread takes by default while others can run."""

_LOOK_SECONDS = 0.1
"""The most real seconds that a task waits for something outside the simulation before another one looks, too."""

POLL_SECONDS = 0.001
"""Virtual seconds that pass when all ranks and threads that can run have checked for something in vain."""


class EnabledRanks(Sequence[int]):
    """The ranks that can run, in circular order from the choosing rank: a view on the sorted list, without a copy."""

    __slots__ = ("_ranks", "_start")

    def __init__(self, ranks: list[int], start: int) -> None:
        self._ranks = ranks
        self._start = start

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        start = self._start % len(self._ranks)
        return iter(self._ranks[start:] + self._ranks[:start])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self._ranks) <= index < len(self._ranks):
            raise IndexError(index)
        return self._ranks[(self._start + index) % len(self._ranks)]


class Scheduler:
    """Decides in which order the tasks (programs and threads of ranks) of one run get their turns."""

    def __init__(self, run: RunState, policy: Policy) -> None:
        self._run = run
        self._policy = policy
        self._most_steps = run.budget.steps
        self._turn_ends = min(self._most_steps, TURN_STEPS)
        """The step number after which the running thread has to let others run, or a step limit ends the run."""
        self._is_choosy = not isinstance(policy, RoundRobin)
        """False for the round robin policy: it always takes the default option, so it need not be asked."""
        self._enabled = list(run.tasks)
        """Numbers of the tasks (programs and threads of ranks) that can run, in increasing order."""
        self._numbered: tuple[RankOrThread, ...] = ()
        self._polled_in_vain: set[int] = set()
        """Programs and threads of ranks whose checks have failed since any of them last changed something."""
        self.failed_poll_rounds = 0
        """How many times in a row all ranks and threads that can run have checked for something in vain."""
        self._timer_rounds = 0
        """How many times in a row the clock has woken nothing but threads that ranks started."""
        self._timer_threads: set[int] = set()
        """The numbers of the threads that the clock woke in the rounds that `_timer_rounds` counts."""
        self._switches = [SwitchTask(number) for number in run.tasks]
        """For each number of a program or thread, the answer that lets it run. Made once and used again."""
        self._outside: list[int] = []
        """The tasks that wait for something outside the simulation; the one that looks for it next is first."""
        self._looked: set[int] = set()
        """Those that have looked for it since the run's last step."""
        self._looked_at, self._seconds_idle = 0, 0.0
        self._idle_from = 0.0
        """The run's last step, the real seconds for which nothing has happened since, and the virtual time then."""
        self.real_seconds_allowed = 0.0
        """How long the task that looks for something outside the simulation may wait for it."""
        self.choices: list[int] = []
        """The schedule: the choices made so far of who runs next."""
        self.time_outs = TimeOuts(run)
        self.expire: Callable[[DueWaits], Script]
        """Ends waits whose time is over; `CallMatcher` sets it."""
        self.fail_calls: Callable[[Sequence[tuple[IssuedCall, CallFailure]]], Script]
        """Ends calls by errors; `CallMatcher` sets it, too."""

    # --- of the running task ------------------------------------------------------------------------------------------

    def check_not_unwinding(self, me: Task) -> None:
        """End the request of a task (a rank's program or thread) if its program is being ended early."""
        if self._run.life.phase is not _RUNNING or me.state is _CANCELLED:
            raise CallerStopped

    def yield_point(self, me: Task, intent: Accesses = ()) -> int | None:
        """Count a step of the running task.

        Return the number of the task that runs before it; None if it goes on at once. Its own number means that it
        first runs the callbacks of calls completed meanwhile. If the task is being ended early, its request ends here.
        """
        run, enabled = self._run, self._enabled
        if run.is_observed:
            run.observer.about_to_access(me.number, intent)
            # A callback: when it runs hangs on when other ranks made the call.
            if any(task is me for _, task in me.rank.delivering):
                run.observer.used_feature(CALLBACKS)
        if run.life.phase is not _RUNNING or me.state is _CANCELLED:
            raise CallerStopped
        run.steps += 1
        successor = me.number
        is_held_up = run.steps > self._turn_ends
        is_overdue = is_held_up and run.steps <= self._most_steps  # otherwise the task itself runs and stops the run
        if (self._is_choosy or is_overdue) and len(enabled) > 1:
            here = bisect_left(enabled, successor) + is_overdue
            choice = self._choose_task(successor, here)
            if run.life.phase is not _RUNNING:  # the policy raised an error
                raise CallerStopped
            successor = enabled[(here + choice) % len(enabled)]
        return successor if successor != me.number or me.rank.completed or is_held_up else None

    def suspend_task(self, me: Task, wait: Wait, timeout_seconds: float | None) -> SwitchTask | None:
        """Count a step of the running program or thread, make it wait, and return the answer that lets another run.
        None if none can run. If it is being ended early, its request ends here."""
        self.check_not_unwinding(me)
        run, number = self._run, me.number
        run.steps += 1
        if timeout_seconds is not None:
            run.clock.set_alarm(number, timeout_seconds)
        me.wait, me.waits_since = wait, run.clock.now + run.clock.outside
        me.state = state_after((me.state, _WAIT))
        self.disable_task(me)
        successor = self.next_enabled(number)
        return None if successor is None else self.switch_to(successor)

    def await_outside(self, me: Task, request: AwaitOutside) -> None:
        """Make the running task wait for something outside the simulation, for which it has just looked in vain."""
        self.check_not_unwinding(me)
        run, number = self._run, me.number
        run.steps += request.is_first
        self._note_steps()
        self._looked.add(number)
        if request.until is not None:
            run.clock.set_alarm(number, request.until - run.clock.now)
        me.wait = request.wait
        me.change_state(_WAIT)
        self.disable_task(me)
        self._seconds_idle += 0.0 if self._enabled else request.seconds  # else others might have run meanwhile
        self._outside.append(number)

    def _note_steps(self) -> None:
        if self._run.steps != self._looked_at:
            clock = self._run.clock
            clock.outside += max(0.0, self._seconds_idle - (clock.now - self._idle_from))
            self._looked_at, self._seconds_idle, self._idle_from = self._run.steps, 0.0, clock.now
            self._looked.clear()

    def _let_look_outside(self) -> bool:
        """Let a task look for what it awaits outside the simulation, if something has happened since it looked, or real
        time may help. Alarms then ring after as many real seconds: the outside has no virtual time."""
        self._note_steps()
        run = self._run
        waits = {number: run.tasks[number].wait for number in self._outside}
        seconds, number = 0.0, next((number for number in waits if number not in self._looked), None)
        if number is None:
            real = {n: wait for n, wait in waits.items() if isinstance(wait, OutsideWait) and not wait.is_of_ranks}
            alarm = run.clock.next_alarm()
            due = self.time_outs.find_due(math.inf if alarm is None else alarm) if real else None
            ends = math.inf if alarm is None else alarm - run.clock.now
            if alarm is None and not any(wait.may_last for wait in real.values()):
                ends = run.budget.stuck_seconds
            if due is not None:
                ends = min(ends, due.moment - run.clock.now)
            seconds, number = min(_LOOK_SECONDS, ends - self._seconds_idle), next(iter(real), None)
            if number is None or seconds <= 0:
                return False
        self._wake_outside(number, seconds)
        return True

    def _wake_outside(self, number: int, seconds: float) -> None:
        run = self._run
        woken = run.tasks[number]
        self._outside.remove(number)
        if run.is_observed:
            run.observer.woke_task(None, number)
        woken.wait = None
        woken.change_state(_WAKE)
        run.clock.cancel_alarm(number)
        insort(self._enabled, number)
        self.real_seconds_allowed = seconds

    def next_after_poll(self, me: Task) -> int:
        """Count a step of a task that has checked for something in vain, and return the task that runs next.

        The default is the next task that can run. Time passes once the checks of all such tasks have failed and none
        changed anything. If the task is being ended early, its request ends here.
        """
        self.check_not_unwinding(me)
        self._run.steps += 1
        self._polled_in_vain.add(me.number)
        if all(number in self._polled_in_vain for number in self._enabled):
            self._polled_in_vain.clear()
            self.failed_poll_rounds += 1
            self._run.clock.add_seconds(POLL_SECONDS)
            if self._run.clock.has_due_alarm():
                self._ring_alarms()
            for number in tuple(self._outside):  # these look again now, and take as much real time
                wait = self._run.tasks[number].wait
                is_real = isinstance(wait, OutsideWait) and not wait.is_of_ranks
                self.failed_poll_rounds *= not is_real
                self._wake_outside(number, POLL_SECONDS * is_real)
        if len(self._enabled) == 1:
            return me.number
        here = bisect_left(self._enabled, me.number) + 1
        choice = self._choose_task(me.number, here)
        return self._enabled[(here + choice) % len(self._enabled)]

    def disable_task(self, me: Task) -> None:
        """Mark a task (a rank's program or thread) as unable to run."""
        index = bisect_left(self._enabled, me.number)
        if index < len(self._enabled) and self._enabled[index] == me.number:
            del self._enabled[index]

    def next_enabled(self, number: int) -> int | None:
        """Return the number of the task that runs after one that cannot; None if none can, or the run stops."""
        enabled = self._enabled
        if not enabled or self._run.life.phase is not _RUNNING:
            return None
        start = bisect_left(enabled, number) % len(enabled)
        return enabled[(start + self._choose_task(number, start)) % len(enabled)]

    def next_task(self, number: int) -> Generator[Answer, Any, int | None]:
        """Return the number of the task that runs next. If no task can run, virtual time passes or the run stops. None
        once all have ended."""
        while self._run.life.phase is _RUNNING:
            successor = self.next_enabled(number)
            if successor is not None:
                return successor
            if self._outside and self._let_look_outside():
                continue
            if self._run.is_agent_due():
                self._run.life.begin_stop(RunEnding.AGENT)
            elif due := self.due_before_alarm():
                yield from self.expire(due)
            elif not self._ring_alarms():
                if self._outside and self._run.running is not None:
                    yield from stop_at_limit(self._run, RunEnding.STUCK, self._run.running)
                yield from stop_without_enabled_task(self._run, self.time_outs, self.fail_calls)
                self._is_choosy = self._is_choosy and self._run.life.end_trial is None
        return self.next_unfinished_task()

    def next_unfinished_task(self) -> int | None:
        """Return the next task (a rank's program or thread) that has to be ended early; None once all have ended."""
        return next((number for number, task in self._run.tasks.items() if not task.is_finished), None)

    def first_task(self) -> int:
        """Return the number of the rank that runs first."""
        return self._enabled[self._choose_task(0, 0)]

    def switch_to(self, successor: int | None) -> SwitchTask:
        """Return the answer that lets a task (a rank's program or thread) run; for None, the one that ends the run."""
        ends = self._run.steps + TURN_STEPS
        self._turn_ends = ends if ends < self._most_steps else self._most_steps  # faster than min(), at each switch
        return SwitchTask(None) if successor is None else self._switches[successor]

    # --- of others ----------------------------------------------------------------------------------------------------

    def wake_task(self, number: int, *, from_outside: bool = False, change: TaskChange = _WAKE) -> None:
        """Let a waiting program or thread run again; one that no longer waits stays as it is. `from_outside`: the clock
        or a thread outside the simulation wakes it."""
        run = self._run
        woken = run.tasks.get(number)
        if woken is None or woken.state is not _WAITING:
            return
        self.note_progress()
        if run.is_observed:
            run.observer.woke_task(None if from_outside or run.running is None else run.running.number, number)
        woken.wait = None
        woken.state = state_after((woken.state, change))
        if number in run.clock.live:
            run.clock.cancel_alarm(number)
        if number in self._outside:
            self._outside.remove(number)
        insort(self._enabled, number)

    def add_task(self, task: Task) -> None:
        """Let a newly started task (a rank's thread) run when its turn comes."""
        run = self._run
        assert task.number == run.started
        self._numbered = (
            *(self._numbered or map(RankOrThread, range(run.started))),
            RankOrThread(task.rank.rank, task.name),
        )
        run.started += 1
        run.tasks[task.number] = task
        self._enabled.append(task.number)
        self._switches.append(SwitchTask(task.number))
        self.note_progress()

    def end_task(self, me: Task, change: TaskChange) -> None:
        """Remove a task (a rank's program or thread) that has ended, and wake the tasks that wait for its end."""
        run = self._run
        me.change_state(change)
        self.note_progress()
        self.disable_task(me)
        run.clock.cancel_alarm(me.number)
        if me.number in self._outside:
            self._outside.remove(me.number)
        if me.is_main:
            self.time_outs.record_end(me.rank)
        for number in me.joiners:
            self.wake_task(number)
        if not me.is_main and me.number in run.tasks:
            del run.tasks[me.number]
            me.rank.tasks.remove(me)

    def note_progress(self) -> None:
        """Record that something has changed for which a polling rank may check."""
        self._timer_rounds = 0
        if self._looked:
            self._looked_at = -1
        if self._timer_threads:
            self._timer_threads = set()
        if self.failed_poll_rounds or self._polled_in_vain:
            self.failed_poll_rounds = 0
            self._polled_in_vain.clear()

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, kind: ChoiceKind, number: int, options: Sequence[int]) -> int:
        """Ask the policy to choose an option, and record the choice. A single option is taken without asking."""
        count = len(options)
        return self._ask_policy(kind, number, options, count) if self._is_choosy and count > 1 else 0

    def _ask_policy(self, kind: ChoiceKind, number: int, options: Sequence[int], count: int) -> int:
        try:
            # does what ChoicePoint(...) does in half the time, at each context switch
            point = _new(ChoicePoint, (kind, self._run.steps, number, self._numbered))
            choice = self._policy.choose(point, options)
            if type(choice) is not int or not 0 <= choice < count:
                choice = self._checked_choice(choice, count)
        except BaseException as error:  # of the policy and not of the rank: it goes to the caller of the run
            running = self._run.running
            self._run.life.abort(error, None if running is None else running.rank.rank)
            return 0
        self.choices.append(choice)
        return choice

    def _checked_choice(self, choice: object, count: int) -> int:
        try:
            index = operator.index(choice)  # type: ignore[arg-type]
        except TypeError:
            index = -1
        if not 0 <= index < count:
            raise UsageError(
                f"policy {type(self._policy).__name__} answered {choice!r}, expected 0 to {count - 1}: "
                "choose() returns an index into options"
            )
        return index

    def _choose_task(self, number: int, start: int) -> int:
        count = len(self._enabled)
        if not self._is_choosy or count < 2:
            return 0
        return self._ask_policy(_RANK, number, EnabledRanks(self._enabled, start), count)

    # --- the clock ----------------------------------------------------------------------------------------------------

    def due_before_alarm(self) -> DueWaits | None:
        """Return the waits that time out before the clock's next alarm; None if nothing but timers wait for it."""
        clock = self._run.clock
        until = clock.next_alarm()
        if until is None and self._outside:  # time has passed while tasks waited for the outside
            return self.time_outs.find_due(clock.now + self._seconds_idle + POLL_SECONDS)
        return None if until is None or clock.live.keys() <= self._timer_threads else self.time_outs.find_due(until)

    def _ring_alarms(self) -> bool:
        """Advance the clock to its next time-outs and wake their tasks. False if there is no time-out, or if only
        threads wake again and again and no other task waits for the clock."""
        run, seen = self._run, self._timer_threads
        woken = run.clock.advance_to_next_alarm()
        # A thread that wakes for the first time may change something.
        rounds = self._timer_rounds + 1 if seen.issuperset(woken) else 0
        is_timer = not any(run.tasks[number].is_main for number in woken)
        for number in woken:
            self.wake_task(number, from_outside=True, change=TaskChange.RING)
        if is_timer:
            self._timer_rounds, self._timer_threads = rounds, seen.union(woken)
        return bool(woken) and (not self._only_timers_run() or self._other_tasks_await_clock())

    def _only_timers_run(self) -> bool:
        """True if threads have been waking again and again for so long that nothing else can happen."""
        return self._timer_rounds > _MOST_TIMER_ROUNDS or (
            self._timer_rounds > _TIMER_ROUNDS and self.time_outs.find_due(self._run.clock.now) is not None
        )

    def _other_tasks_await_clock(self) -> bool:
        """True if a task waits for a time-out, other than the threads that time-outs wake again and again."""
        clock, timers = self._run.clock, self._timer_threads
        return any(number in clock.live and number not in timers for number in self._run.tasks)
