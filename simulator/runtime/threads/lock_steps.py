"""Steps of threads at their locks: what threads and locks need of the execution that they belong to."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, Protocol

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.kernel.requests import Acquire, Checkpoint, Poll, Release, Request, Touch, Use
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.runtime.rank_thread import RankThread

_LOCKS_PER_POLL = 1_000
"""So many locks in a row with nothing else in between are a loop that waits for another thread."""

_GLANCE_SECONDS = 0.005
"""How often, in real time, who waits for threads outside the simulation looks whether they have done something."""


class LockHost(Protocol):
    """What runs the ranks as threads, as these threads see it."""

    is_observed: bool

    @property
    def me(self) -> RankThread:
        """The running thread of a rank."""

    @property
    def steps(self) -> int:
        """How many steps there were."""

    @property
    def is_stopping(self) -> bool:
        """True once the execution has come to its end."""

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank."""

    def is_unwinding(self, me: RankThread) -> bool:
        """True if a thread is being carried out of what it runs."""

    def ask(self, request: Request) -> Any:
        """Carry a request of the running thread to the kernel."""

    def start_thread(self, child: RankThread) -> None:
        """Let the kernel know a thread that the running one has started."""

    def adopt(self, child: RankThread) -> None:
        """Let a thread that a rank has started be what the kernel knows."""

    def finish(self, me: RankThread, how: Change) -> None:
        """Give the baton away for good."""

    def break_off_by_bug(self, error: Exception) -> None:
        """End the execution with an error that nobody but us can have made."""


class Waited(Protocol):
    """What threads of ranks wait for, and a thread outside the simulation may give."""

    def take_from_outside(self) -> bool:
        """Wake who has waited longest, if it was given."""


class LockSteps:
    """What threads do to each other, as steps of an execution. It is let go of when the execution is over."""

    def __init__(self, host: LockHost) -> None:
        self._host: LockHost | None = host
        self._is_aside = False
        self.has_external_threads: Callable[[], bool] = _none_there
        """True while there are threads outside the simulation that may release what a rank waits for."""
        self.waited: list[Waited] = []
        """What threads of ranks wait for, in the order in which they began to."""

    def end(self) -> None:
        """The execution is over: from now on locks made in it are like any others."""
        self._host = None
        self.has_external_threads = _none_there

    @property
    def host(self) -> LockHost:
        """The execution."""
        assert self._host is not None
        return self._host

    def __enter__(self) -> None:
        """What happens inside is no step of a rank, and its locks and threads are real: the machinery is at work."""
        self._is_aside = True

    def __exit__(self, *exception: object) -> None:
        self._is_aside = False

    def running(self) -> RankThread | None:
        """The caller's thread if it is the running one of a rank."""
        host = self._host
        return None if host is None or self._is_aside or not host.is_rank_thread() else host.me

    def comes_from_outside(self, me: RankThread, *, is_external: bool) -> bool:
        """True if only a thread outside the simulation gives what the caller waits for, so only real time can tell."""
        return (is_external or len(me.of.threads) == 1) and self.has_external_threads()

    def await_external_threads(self) -> bool:
        """When no thread of a rank can go on: wait, in real time, until one outside wakes one. False without any."""
        pause, host = allocate_lock(), self.host
        pause.acquire()
        while self.waited and not host.is_stopping:
            may_give = self.has_external_threads()  # asked first: one that has ended since may have given before
            if any(each.take_from_outside() for each in tuple(self.waited)):
                return True
            if not may_give:
                break
            pause.acquire(timeout=_GLANCE_SECONDS)
        return host.is_stopping

    def yield_before(self, me: RankThread, intent: Accesses, *, is_in_vain: bool = False) -> None:
        """A choice point, if there is another thread of the rank, and none is being carried out."""
        host = self.host
        if len(me.of.threads) == 1 or host.is_unwinding(me):
            return
        steps = host.steps
        me.locks_in_a_row = me.locks_in_a_row + 1 if steps == me.lock_step else 0
        if is_in_vain or me.locks_in_a_row >= _LOCKS_PER_POLL:
            me.locks_in_a_row = 0
            host.ask(Poll(intent))
        else:
            host.ask(Checkpoint(intent))
        me.lock_step = host.steps

    def touch(self, me: RankThread, *accesses: Access) -> None:
        """Tell who explores."""
        if self.host.is_observed and me.of.has_started_threads:
            self.host.ask(Touch(accesses))

    def use(self, kind: str) -> None:
        """Tell who explores that a thread uses something of a kind."""
        if self.host.is_observed:
            self.host.ask(Use(kind))

    def release(self, me: RankThread, lock: Object) -> bool:
        """Let whoever takes the lock next know what came before; False if nobody explores that."""
        if not self.host.is_observed or not me.of.has_started_threads:
            return False
        self.host.ask(Release(lock))
        return True

    def acquire(self, me: RankThread, lock: Object) -> None:
        """Know what came before the lock was given back."""
        if self.host.is_observed:
            self.host.ask(Acquire(lock))


def _none_there() -> bool:
    return False
