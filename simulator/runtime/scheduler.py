"""The scheduler: which ranks are enabled, which one runs next, and the hand-over of the baton.

Exactly one rank's thread runs at a time. A rank gives the baton away only in `checkpoint`, `yield_to_others`, `block`
and `finish`, each called on its own thread; the receiver wakes up inside its own call of one of these. Nobody else
decides, so there is no scheduler thread and a hand-over costs one lock release and one acquire.

When no rank is enabled the virtual clock moves; when it has nothing to fire either, `on_idle` is told, which may yet
have woken somebody. Else the run is over, and every rank is unwound in turn. So it is when the clock does nothing but
wake threads that beat in the background, on and on, and nobody else waits for it.

A rank may start threads. Each has a number of its own, and what is said of ranks here holds of all threads.
"""

from __future__ import annotations

import operator
import threading
from _thread import allocate_lock as _allocate_lock
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import get_ident as _thread_ident
from typing import overload

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Policy, Who
from ddpsim.simulator.clock import VirtualClock
from ddpsim.simulator.errors import InternalError, UsageError
from ddpsim.simulator.policies.round_robin import RoundRobin
from ddpsim.simulator.runtime.observer import Observer
from ddpsim.simulator.runtime.one_core import threads_started_here_share_a_core
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound, Status
from ddpsim.simulator.waits import Wait

_MOST_UNWINDS = 1_000
"""A program may catch what carries it out, and clean up; this often it does not mean to leave."""

_MOST_BEATS = 10_000
"""So often in a row may threads that ranks started be woken by the clock while nothing else happens at all."""

POLL_SECONDS = 0.001
"""Virtual time that passes when a rank polls in vain and nobody else is enabled."""


class EnabledRanks(Sequence[int]):
    """The enabled ranks as options: from the rank at the choice point on, in a circle. A view, made in O(1)."""

    __slots__ = ("_ranks", "_start")

    def __init__(self, ranks: list[int], start: int) -> None:
        self._ranks = ranks
        self._start = start

    def __len__(self) -> int:
        return len(self._ranks)

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
    """The baton and who gets it."""

    def __init__(
        self,
        threads: Sequence[RankThread],
        policy: Policy,
        clock: VirtualClock,
        *,
        switch: Callable[[int | None, int | None], None],
        on_idle: Callable[[], bool],
        observer: Observer | None,
        share_core: bool,
    ) -> None:
        self._threads = {thread.number: thread for thread in threads}
        """Those that have not ended, and all that run a rank's program, by number."""
        self._started = len(threads)
        self._numbered: tuple[Who, ...] = ()
        self._policy = policy
        self._is_choosy = not isinstance(policy, RoundRobin)
        """Round robin takes the default everywhere, so nobody needs to ask it, at every call of every rank."""
        self._clock = clock
        self._switch = switch
        self._on_idle = on_idle
        self._observer = observer
        self._share_core = share_core
        self._enabled = list(self._threads)
        self._polled_in_vain: set[int] = set()
        """Who has looked for something in vain since anybody got on. Only asked about, never walked through."""
        self._vain_rounds = 0
        self._beats = 0
        """How often in a row the clock woke none but threads that ranks started, with nothing else in between."""
        self._beaters: set[int] = set()
        """Which ones, by number. Only asked about."""
        self._unwinds: Counter[int] = Counter()
        """How often each thread was carried out of its program, by ident."""
        self.answers: list[int] = []
        self.steps = 0
        self.running: RankThread | None = None
        self.is_stopping = False
        self.failure: BaseException | None = None
        """What broke the machinery (a policy that raised); no rank's error."""
        self.failed_under: RankThread | None = None
        """Who ran then."""
        self.has_ended = False
        self.over = _allocate_lock()
        """Held until the execution has ended, that is, the last rank is finished."""
        self.over.acquire()

    # --- called by the thread that starts the execution ---------------------------------------------------------------

    def start(self) -> None:
        """Start every rank's thread and hand the baton to the first one chosen."""
        with threads_started_here_share_a_core() if self._share_core else nullcontext():
            for thread in list(self._threads.values()):
                try:
                    thread.start()
                except RuntimeError as error:
                    raise UsageError(
                        f"the system starts no thread for rank {thread.rank} ({error}), expected one for each of "
                        f"{len(self._threads)} ranks: take fewer ranks, or raise the limit of processes (`ulimit -u`)"
                    ) from error
        self._pass_baton(None, self._threads[self._enabled[self._choose_rank(0, 0)]])

    def end_from_outside(self) -> None:
        """End the execution from the thread that started it, whether or not it got as far as handing over the baton."""
        self.is_stopping = True
        if self.running is None and not self.has_ended:
            for thread in self._threads.values():
                if not thread.ident:
                    thread.status = Status.UNWOUND
            self._pass_baton(None, self._next_unfinished())

    def abandon(self, stuck: RankThread) -> None:
        """Take the baton from a rank that does not come back, and unwind the others without it."""
        stuck.status = Status.ABANDONED
        self.is_stopping = True
        self._leave_enabled(stuck.number)
        self._pass_baton(stuck, self._next_unfinished())

    # --- called by the running rank -----------------------------------------------------------------------------------

    def checkpoint(self) -> RankThread:
        """A choice point: anybody enabled may run before the caller, who is returned. The default is the caller."""
        me = self._enter()
        if self._is_choosy and len(self._enabled) > 1:
            here = bisect_left(self._enabled, me.number)
            answer = self._choose_rank(me.number, here)
            if self.is_stopping:
                raise RankUnwound
            if answer:
                self._hand_over(me, self._threads[self._enabled[(here + answer) % len(self._enabled)]])
        return me

    def yield_to_others(self) -> int:
        """A choice point whose default is the next enabled rank, for a caller that polled in vain.

        When every enabled rank has done so and nobody got on in between, time passes. Returns how many such rounds
        there have been in a row.
        """
        me = self._enter()
        self._polled_in_vain.add(me.number)
        if all(number in self._polled_in_vain for number in self._enabled):
            self._polled_in_vain.clear()
            self._vain_rounds += 1
            self._clock.tick(POLL_SECONDS)
            if self._clock.due():
                self._ring()
        if len(self._enabled) > 1:
            here = bisect_left(self._enabled, me.number) + 1
            answer = self._choose_rank(me.number, here)
            self._hand_over(me, self._threads[self._enabled[(here + answer) % len(self._enabled)]])
        return self._vain_rounds

    def note_progress(self) -> None:
        """Something happened that a rank which polls may look for."""
        self._beats = 0
        if self._beaters:
            self._beaters = set()
        if self._vain_rounds or self._polled_in_vain:
            self._vain_rounds = 0
            self._polled_in_vain.clear()

    def block(self, wait: Wait) -> None:
        """Let the others run until somebody wakes the caller."""
        me = self._enter()
        me.wait = wait
        me.status = Status.WAITING
        self._leave_enabled(me.number)
        self._hand_over(me, self._next(me.number))

    def wake(self, number: int, *, from_outside: bool = False) -> None:
        """Enable a waiting thread; it runs when it is chosen. One that no longer waits stays as it is.

        The clock wakes from outside, and so do threads that are none of a rank's.
        """
        woken = self._threads.get(number)
        if woken is None or woken.status is not Status.WAITING:
            return
        self.note_progress()
        if self._observer is not None:
            self._observer.woke(None if from_outside or self.running is None else self.running.number, number)
        woken.wait = None
        woken.status = Status.READY
        self._clock.cancel(number)
        insort(self._enabled, number)

    def finish(self, me: RankThread, status: Status) -> None:
        """What the caller ran has ended: give the baton away for good. Called last on a rank's thread.

        If RankUnwound comes out, the baton is still the caller's, who calls again.
        """
        if me.status is Status.ABANDONED:
            return
        self._end(me, status)
        successor = self._next(me.number)  # asks the policy, which may need an interrupt
        if me.ending.claim():
            self._pass_baton(me, successor)

    @property
    def enabled(self) -> Sequence[int]:
        """The numbers of the threads that are able to take a step."""
        return tuple(self._enabled)

    def stop(self) -> None:
        """End the execution: every thread is carried out of what it runs, in the order of their numbers."""
        self.is_stopping = True

    # --- threads that ranks start -------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the thread that is started next."""
        return self._started

    def add(self, thread: RankThread) -> None:
        """Enable a thread that has just been started, and sleeps until it gets the baton."""
        assert thread.number == self._started
        self._numbered = (*(self._numbered or map(Who, self._threads)), Who(thread.rank, thread.name))
        self._started += 1
        self._threads[thread.number] = thread
        self._enabled.append(thread.number)
        self.note_progress()

    def condemn(self, thread: RankThread) -> None:
        """Let a thread be carried out of what it runs when it runs next."""
        thread.is_condemned = True
        if self._observer is not None and not thread.is_finished:
            self._observer.intends(thread.number, ())
        self.wake(thread.number)

    def is_unwinding(self, me: RankThread) -> bool:
        """True if a thread is being carried out of what it runs."""
        return self.is_stopping or me.is_condemned

    def break_off(self, error: BaseException) -> None:
        """End the execution with an error of the machinery, which whoever runs the execution shall raise."""
        if self.failure is None:
            self.failure, self.failed_under = error, self.running
        self.is_stopping = True

    def break_off_by_bug(self, error: Exception) -> None:
        """As `break_off`, for an error that nobody but us can have made (or a rank's recursion that left no room)."""
        if not isinstance(error, RecursionError):
            bug = InternalError(f"{type(error).__name__}: {error} (a bug of ddpsim, please report it)")
            bug.__cause__ = error
            error = bug
        self.break_off(error)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _enter(self) -> RankThread:
        me = self.running
        if self.is_stopping or me is None:
            self._unwind()
        assert me is not None
        if me.is_condemned:
            self._unwind()
        if me.ident != _thread_ident():
            error = UsageError(
                f"thread {threading.current_thread().name!r} communicates while rank {me.rank} runs, expected only "
                "threads that ranks start by threading.Thread or an executor: call from one of those"
            )
            self.break_off(error)  # raised there it would be lost with the thread
            raise error
        self.steps += 1
        return me

    def _unwind(self) -> None:
        """Carry the caller out of its program. One that clings to it, whatever is raised, is put to sleep for good.

        Its thread is left behind then (`abandon`), and costs nothing; it would go on for ever otherwise.
        """
        ident = _thread_ident()
        self._unwinds[ident] += 1
        if self._unwinds[ident] > _MOST_UNWINDS:
            me = self.running
            if me is not None and me.ident == ident and not self.is_stopping:  # a rank that is over, and not the run
                self._end(me, Status.ABANDONED)
                self._pass_baton(me, self._next(me.number))
            for_ever = _allocate_lock()
            for_ever.acquire()
            while True:
                for_ever.acquire()
        raise RankUnwound

    def _end(self, me: RankThread, status: Status) -> None:
        me.status = status
        self.note_progress()
        self._leave_enabled(me.number)
        self._clock.cancel(me.number)
        for number in me.joiners:
            self.wake(number)
        if not me.is_main and me.number in self._threads:
            del self._threads[me.number]
            me.of.threads.remove(me)

    def choose(self, kind: ChoiceKind, rank: int, options: Sequence[int]) -> int:
        """Ask the policy, and write its answer into the schedule. One option is no choice."""
        if not self._is_choosy or len(options) < 2:
            return 0
        try:
            answer = self._checked(
                self._policy.choose(ChoicePoint(kind, self.steps, rank, self._numbered), options), options
            )
        except BaseException as error:  # not the rank's fault: it ends the run, and the caller of the run gets it
            self.break_off(error)
            return 0
        self.answers.append(answer)
        return answer

    def _checked(self, answer: object, options: Sequence[int]) -> int:
        try:
            index = operator.index(answer)  # type: ignore[arg-type]
        except TypeError:
            index = -1
        if not 0 <= index < len(options):
            raise UsageError(
                f"policy {type(self._policy).__name__} answered {answer!r}, expected 0 to {len(options) - 1}: "
                "choose() returns an index into options"
            )
        return index

    def _choose_rank(self, rank: int, start: int) -> int:
        if not self._is_choosy:
            return 0
        return self.choose(ChoiceKind.RANK, rank, EnabledRanks(self._enabled, start))

    def _next(self, number: int) -> RankThread | None:
        """Whom the caller, which is not enabled, hands over to; None once everybody is finished."""
        while not self.is_stopping:
            if self._enabled:
                start = bisect_left(self._enabled, number) % len(self._enabled)
                answer = self._choose_rank(number, start)
                return self._threads[self._enabled[(start + answer) % len(self._enabled)]]
            if not self._ring() and not self._tell_idle():
                self.is_stopping = True
        return self._next_unfinished()

    def _next_unfinished(self) -> RankThread | None:
        return next((thread for thread in self._threads.values() if not thread.is_finished), None)

    def _ring(self) -> bool:
        """Let the clock's next alarms wake their threads."""
        beaters, woken = self._beaters, self._clock.advance()
        beats = self._beats + 1 if beaters.issuperset(woken) else 0  # who wakes for the first time may end it all
        is_beat = not any(self._threads[number].is_main for number in woken)
        for number in woken:
            self._threads[number].timed_out = True
            self.wake(number, from_outside=True)
        if is_beat:
            self._beats, self._beaters = beats, beaters.union(woken)
        return bool(woken) and (self._beats <= _MOST_BEATS or self._others_wait_for_the_clock())

    def _others_wait_for_the_clock(self) -> bool:
        """True if time that goes on wakes somebody who does not only beat."""
        return any(
            thread.status is Status.WAITING and thread.has_alarm and number not in self._beaters
            for number, thread in self._threads.items()
        )

    def _leave_enabled(self, number: int) -> None:
        index = bisect_left(self._enabled, number)
        if index < len(self._enabled) and self._enabled[index] == number:
            del self._enabled[index]

    def _hand_over(self, me: RankThread, successor: RankThread | None) -> None:
        """Give the baton away and sleep until it comes back."""
        if successor is not me:
            self._pass_baton(me, successor)
            me.baton.acquire()
        if self.is_stopping or me.is_condemned:
            raise RankUnwound

    def _tell_idle(self) -> bool:
        try:
            return self._on_idle()
        except Exception as error:  # as in _pass_baton
            self.break_off_by_bug(error)
            return False

    def _pass_baton(self, giver: RankThread | None, successor: RankThread | None) -> None:
        try:
            self._switch(None if giver is None else giver.rank, None if successor is None else successor.rank)
        except Exception as error:  # a bug of ours, but the baton must go on, or everybody sleeps for ever
            self.break_off_by_bug(error)
        self.running = successor
        if successor is None:
            self.has_ended = True
            self.over.release()
        else:
            successor.baton.release()
