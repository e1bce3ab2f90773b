"""Makes operations on threads and locks steps of the run: points where another thread may run first."""

from _thread import allocate_lock
from collections.abc import Callable
from threading import TIMEOUT_MAX as _FOR_EVER
from typing import Protocol, TypeVar

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.kernel.requests import (
    AcquireObject,
    Checkpoint,
    Poll,
    ReleaseObject,
    ReportAccesses,
    ReportLockUse,
)
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.outside import wait_outside
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.waits import OutsideWait

T = TypeVar("T")

_LOCKS_PER_POLL = 1_000
"""A thread that takes so many locks in a row, and does nothing else, is taken to wait in a loop for another thread."""

_POLL_SECONDS = 0.005
"""The real time between two checks whether a thread outside the simulation has released a lock."""


class LockHost(Host, Protocol):
    """The functions of `ThreadHost` that the simulated threads and locks of ranks use."""

    @property
    def is_stopping(self) -> bool:
        """True once the run has ended."""

    def is_unwinding(self, me: RankThread) -> bool:
        """True if a thread is being ended early."""

    def start_thread(self, child: RankThread) -> None:
        """Tell the kernel that the running thread has started another one."""

    def connect_task(self, child: RankThread) -> None:
        """Give a started thread its task (the kernel's record of a thread)."""

    def finish_thread(self, me: RankThread, how: TaskChange) -> None:
        """Let another thread run, as the last call on a thread."""

    def abort_run_by_bug(self, error: Exception) -> None:
        """End the run with an error that is a bug of ddpsim."""


class ExternallyReleased(Protocol):
    """A lock or queue for which threads of ranks wait, and which an unsimulated thread may release or fill."""

    def wake_after_external_release(self) -> bool:
        """Wake the thread that has waited longest, if one outside the simulation has released or put something."""


class LockSteps:
    """Makes operations on locks and threads steps of one run. After the run, its locks are plain Python locks."""

    def __init__(self, host: LockHost) -> None:
        self._host: LockHost | None = host
        self.is_untracked = False
        """True while ddpsim's own code runs: its locks and threads are real, and no operation is a step."""
        self.has_external_threads: Callable[[], bool] = _no_external_threads
        """True while threads outside the simulation exist that may release what a rank waits for."""
        self.waited: list[ExternallyReleased] = []
        """The locks and queues that threads of ranks wait for, in the order in which the waits began."""

    def end_execution(self) -> None:
        """End the run: from now on its locks are plain Python locks."""
        self._host = None
        self.has_external_threads = _no_external_threads

    @property
    def host(self) -> LockHost:
        """The host that runs the ranks' threads."""
        assert self._host is not None
        return self._host

    def calling_rank_thread(self) -> RankThread | None:
        """Return the rank thread on which the caller runs; None outside of ranks."""
        host = self._host
        return None if host is None or self.is_untracked or not host.is_rank_thread() else host.running_thread

    def is_rank_thread(self) -> bool:
        """True if the caller runs on a rank's thread."""
        return self.calling_rank_thread() is not None

    def only_external_thread_can_release(self, me: RankThread, *, is_external: bool) -> bool:
        """True if only a thread outside the simulation can release what the caller waits for, in real time."""
        return (is_external or len(me.of.threads) == 1) and self.has_external_threads()

    def wait_for_external_thread(
        self, me: RankThread, look_for: Callable[[float], T | None], timeout: float | None = None
    ) -> T | None:
        """Return what `look_for`, which waits for so many real seconds, returns once a thread outside the simulation
        has done its part; other ranks run meanwhile. None if the time-out passes first."""
        if self.host.is_unwinding(me):
            return look_for(_FOR_EVER if timeout is None else timeout)
        site = current_user_site()
        return wait_outside(
            self.host,
            look_for,
            lambda *, may_last: OutsideWait("a thread of a library", may_last=may_last, site=site),
            timeout,
            is_for_threads=True,
        )

    def await_external_threads(self) -> bool:
        """No rank thread can run: wait in real time until a thread outside the simulation wakes one.

        False if none can.
        """
        pause, host = allocate_lock(), self.host
        pause.acquire()
        while self.waited and not host.is_stopping:
            may_give = self.has_external_threads()  # before the check: a thread may release something and end
            if any(each.wake_after_external_release() for each in tuple(self.waited)):
                return True
            if not may_give:
                break
            pause.acquire(timeout=_POLL_SECONDS)
        return host.is_stopping

    def choice_point_before(self, me: RankThread, intent: Accesses, *, is_in_vain: bool = False) -> None:
        """Let other threads run before an operation, if the rank has others and the caller is not being ended."""
        host = self.host
        if len(me.of.threads) == 1 or host.is_unwinding(me):
            return
        me.locks_in_a_row = me.locks_in_a_row + 1 if host.steps == me.lock_step else 0
        if is_in_vain or me.locks_in_a_row >= _LOCKS_PER_POLL:
            me.locks_in_a_row = 0
            host.send_request(Poll(intent))
        else:
            host.send_request(Checkpoint(intent))
        me.lock_step = host.steps

    def report_accesses(self, me: RankThread, *accesses: Access) -> None:
        """Report which objects the caller reads and writes to the exploration of schedules, if there is one."""
        if self.host.is_observed and me.of.has_started_threads:
            self.host.send_request(ReportAccesses(accesses))

    def report_use(self, kind: str) -> None:
        """Tell the exploration of schedules that a thread uses a kind of object, such as "Lock"."""
        if self.host.is_observed:
            self.host.send_request(ReportLockUse(kind))

    def record_release(self, me: RankThread, lock: Object) -> bool:
        """Tell the exploration of schedules, if there is one, that a lock is released. False if there is none."""
        if not self.host.is_observed or not me.of.has_started_threads:
            return False
        self.host.send_request(ReleaseObject(lock))
        return True

    def record_acquire(self, me: RankThread, lock: Object) -> None:
        """Tell the exploration of schedules that a lock is acquired: this comes after its last release."""
        if self.host.is_observed:
            self.host.send_request(AcquireObject(lock))


def _no_external_threads() -> bool:
    return False
