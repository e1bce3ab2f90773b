"""The life of a rank's threads: start, join, `is_alive`, and their end with the rank.

Prior art: Loom and Shuttle (Rust) and Coyote (.NET) also run one thread at a time and choose the next one at each
synchronization operation, but need a program written for their types. CHESS intercepts Win32 calls, as this module
intercepts Python's `threading`. Rejected: a switch at every line (slow, and it seldom matters where no lock is used).

`RankThreads.install` replaces functions of Python during a run; they behave differently only on a rank's threads.

Not covered: other functions of `_thread`, native threads, locks made before the run, by a name bound before the run
(`from threading import Lock`), or during an import (except imports of the program's own modules in a rank process).
External threads, which work with other processes or in real time, are not simulated: those of multiprocessing,
ProcessPoolExecutor, DataLoader and tqdm, and those that an asyncio loop outside the rank starts. A rank waits for them
in real time, once no other thread can run.

A rank ends as a process does: after its program it waits for its threads, executors end their workers, and daemon
threads are ended early. A thread that raises ends alone.
"""

import _thread
import concurrent.futures._base as futures
import concurrent.futures.thread as executors
import logging
import queue
import sys
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.lifecycle import threads_object
from ddpsim.simulator.kernel.requests import Block, CancelThread, ReadClock, SawThreadEnd, WriteNote
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.one_core import record_shared_core
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.replaced import ReplacedAttributes, on_ranks
from ddpsim.simulator.runtime.threads import executor_parts as parts
from ddpsim.simulator.runtime.threads.event_loops import is_external_thread, may_wake_ranks, wrap_loop_constructor
from ddpsim.simulator.runtime.threads.lock_steps import LockHost, LockSteps
from ddpsim.simulator.runtime.threads.locks import LockMakers, RankLock, RankRLock, wrap_event_is_set
from ddpsim.simulator.runtime.threads.queues import RankSimpleQueue
from ddpsim.simulator.runtime.threads.thread_body import ThreadError, ThreadMain, restore_run_method, thread_end_object
from ddpsim.simulator.waits import ThreadWait

_EXECUTOR: Any = executors.ThreadPoolExecutor
_EXECUTORS_LOG = logging.getLogger("concurrent.futures")


class RankThreads:
    """Starts and ends the threads that the ranks of one run start."""

    def __init__(self, host: LockHost, enter: Callable[[], object], *, owns_modules: bool = False) -> None:
        """`enter` is called on each new thread first.

        `owns_modules`: locks of the program's modules belong to the rank.
        """
        self.steps = LockSteps(host)
        self.steps.has_external_threads = self._has_external_threads
        self._makers = LockMakers(self.steps, owns_modules=owns_modules)
        self._enter = enter
        self._errors: dict[object, ThreadError] = {}
        self._records: WeakKeyDictionary[threading.Thread, RankThread] = WeakKeyDictionary()
        """Every thread started by a rank that the program may still refer to, with its state."""
        self._leaving: list[threading.Thread] = []
        """Threads that run no more for the simulation, and whose Python threads may not have ended yet."""
        self._external_threads: list[threading.Thread] = []
        self._replaced = ReplacedAttributes()

    @property
    def errors(self) -> list[ThreadError]:
        """The errors that threads of ranks raised, in the order raised."""
        return list(self._errors.values())

    # --- what is replaced ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Replace Python's functions for threads, locks and simple queues, on which Python builds the rest."""
        assert not self._replaced, "installed twice"
        steps, makers = self.steps, self._makers
        now = partial(self._clock_for_ranks, lambda: float(self.steps.host.send_request(ReadClock())))
        thread: Any = threading.Thread
        on = partial(on_ranks, steps)
        for owner, name, replacement in (
            (thread, "start", on(self._start)),
            (thread, "join", on(self._join)),
            (_thread, "start_new_thread", on(self._start_new_thread)),
            (_thread, "start_new", on(self._start_new_thread)),
            (thread, "is_alive", on(self._is_alive)),
            (threading, "enumerate", on(lambda original: self._own_threads())),
            (threading, "active_count", on(lambda original: len(self._own_threads()))),
            (threading, "Lock", partial(makers.wrap_maker, RankLock, "Lock")),
            (threading, "RLock", partial(makers.wrap_maker, RankRLock, "RLock")),
            (threading, "_allocate_lock", makers.wrap_condition_lock),
            (threading.Event, "is_set", wrap_event_is_set),
            (threading, "_time", now),
            (threading, "_counter", lambda original: parts.counter_for_ranks(steps, original, start=1)),
            (queue, "SimpleQueue", partial(makers.wrap_maker, RankSimpleQueue, "SimpleQueue")),
            (queue, "time", now),
            (executors._WorkItem, "__init__", self._wrap_work_item),
            (_EXECUTOR, "_counter", lambda original: staticmethod(parts.counter_for_ranks(steps, original, start=0))),
            (executors, "_global_shutdown_lock", lambda original: parts.ShutdownLockForRanks(steps, original)),
            (executors, "_shutdown", lambda original: parts.ShutdownFlagForRanks(steps, original)),
            (executors, "set", lambda _: parts.wrap_set(steps, self._thread_sort_key)),
            (futures, "set", lambda _: parts.wrap_set(steps, parts.future_sort_key)),
            (futures, "DoneAndNotDoneFutures", lambda original: parts.wrap_wait_results(steps, original)),
            (futures, "_AcquireFutures", lambda original: parts.wrap_acquire_futures(steps, original)),
            (BaseSelectorEventLoop, "__init__", partial(wrap_loop_constructor, steps)),
            (sys, "unraisablehook", _wrap_unraisable_hook),
        ):
            self._replaced.replace_attribute(owner, name, replacement)
        _EXECUTORS_LOG.addFilter(_is_worth_logging)

    def uninstall(self) -> None:
        """Restore Python's functions. May be called twice.

        Reference cycles are broken, so that Python's garbage collector has nothing to do after a run.
        """
        self.steps.end_execution()
        self._enter = lambda: None
        _EXECUTORS_LOG.removeFilter(_is_worth_logging)
        self._replaced.restore_attributes()
        waiting: Any = executors._threads_queues
        for thread in [thread for thread in waiting if thread in self._records]:
            del waiting[thread]  # Python would wait for an abandoned thread at the end of the process

    def join_ended_threads(self) -> None:
        """Wait for the Python threads that have ended their work. Only threads that refuse to end are left then."""
        for thread, record in list(self._records.items()):
            if record.is_abandoned:
                threading.Thread.join(thread, timeout=0.2)
                self._leaving = [each for each in self._leaving if each is not thread]
        for thread in self._leaving:
            threading.Thread.join(thread)
        self._leaving = []

    def _clock_for_ranks(self, clock: Callable[[], float], original: Callable[[], float]) -> Callable[[], float]:
        return lambda: original() if self.steps.calling_rank_thread() is None else clock()

    # --- a thread's life ----------------------------------------------------------------------------------------------

    def _start(self, original: Callable[[Any], None], thread: Any) -> None:
        if thread in self._records or not getattr(thread, "_initialized", False):
            original(thread)
        elif is_external_thread(thread):
            self._start_native_thread(original, thread)
            if may_wake_ranks(thread):
                self._external_threads.append(thread)
        else:
            self._start_rank_thread(original, thread, self.steps.host.running_thread)

    @staticmethod
    def _start_new_thread(
        original: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None, /
    ) -> int:
        """Replace `_thread.start_new_thread`: its threads are threads of the rank, too."""
        thread = threading.Thread(target=function, args=args, kwargs=kwargs, daemon=True)
        thread.start()
        assert thread.ident is not None
        return thread.ident

    def _start_rank_thread(self, original: Callable[[Any], None], thread: Any, me: RankThread) -> None:
        child = RankThread(None, me.of, thread.name, is_daemon=thread.daemon, started_at=current_user_site())
        child.thread = thread
        own_run = vars(thread).get("run")
        body = ThreadMain(
            self.steps.host, self.steps, enter=self._enter, errors=self._errors, leave=self._note_thread_end
        )
        thread.run = lambda: body.run_thread(child, thread, own_run)
        thread._daemonic = True  # a thread that refuses to end must not keep the process alive
        try:
            self._start_native_thread(original, thread)
        except RuntimeError:
            restore_run_method(thread, own_run)
            raise
        finally:
            thread._daemonic = child.is_daemon
        child.ident = child.asker = thread.ident or 0
        record_shared_core(thread)
        self._records[thread] = child
        self._leaving = [each for each in self._leaving if _is_alive_in_system(each)]
        self.steps.host.start_thread(child)

    def _start_native_thread(self, original: Callable[[Any], None], thread: Any) -> None:
        """Start a thread as Python does, with a real event that signals its start."""
        self.steps.is_untracked = True
        try:
            thread._started = threading.Event()
            original(thread)
        finally:
            self.steps.is_untracked = False

    def _note_thread_end(self, me: RankThread, thread: Any) -> None:
        if not me.is_abandoned:
            self._leaving.append(thread)
            me.thread = None

    @staticmethod
    def _wrap_work_item(original: Callable[..., None]) -> Callable[..., None]:
        def make(item: Any, *arguments: Any) -> None:
            original(item, *arguments)
            item.submitted_at = current_user_site()

        return make

    def _join(self, original: Callable[..., None], thread: Any, timeout: float | None = None) -> None:
        me, other = self.steps.host.running_thread, self._records.get(thread)
        if thread in self._external_threads and thread.is_alive():

            def look_for(seconds: float) -> bool | None:
                original(thread, seconds)
                return None if thread.is_alive() else True

            self.steps.wait_for_external_thread(me, look_for, timeout)
        elif other is None or other is me:
            original(thread, timeout)
        elif self._wait_for_thread(me, other, timeout) and not other.is_abandoned:
            original(thread)  # the thread ends at once

    def _is_alive(self, original: Callable[[Any], bool], thread: Any) -> bool:
        me, other = self.steps.host.running_thread, self._records.get(thread)
        if other is None:
            return original(thread)
        look = Access(thread_end_object(other), AccessMode.READ)
        self.steps.choice_point_before(me, (look,), is_in_vain=not other.is_finished and other is not me)
        self.steps.report_accesses(me, look)
        return not other.is_finished

    def _own_threads(self) -> list[Any]:
        """Return the threads of the running rank, for functions that return those of a process, or their number."""
        me = self.steps.host.running_thread
        look = Access(threads_object(me.rank), AccessMode.READ)
        self.steps.choice_point_before(me, (look,))
        self.steps.report_accesses(me, look)
        return [each.thread for each in me.of.threads]

    def _wait_for_thread(
        self, me: RankThread, other: RankThread, timeout: float | None, *, is_at_end: bool = False
    ) -> bool:
        """Wait until another thread has ended. False if the time-out passed first."""
        host, is_look = self.steps.host, timeout is not None and timeout <= 0
        self.steps.choice_point_before(me, (), is_in_vain=is_look and not other.is_finished)
        if not other.is_finished and not is_look:
            wait = ThreadWait(other.number, other.name, current_user_site(), is_at_end)
            host.send_request(WriteNote(EventKind.WAIT, f"the end of thread {other.name!r}"))
            host.send_request(Block(wait, timeout))
            host.send_request(WriteNote(EventKind.DONE, f"the end of thread {other.name!r}"))
        if is_look or timeout is not None:
            self.steps.report_accesses(me, Access(thread_end_object(other), AccessMode.READ))
        if other.is_finished and host.is_observed:
            host.send_request(SawThreadEnd(other.number))
        return other.is_finished

    # --- the end of a rank --------------------------------------------------------------------------------------------

    def wait_for_other_threads(self, me: RankThread) -> None:
        """Let all other threads of the rank end, as a process does after its program."""
        rank = me.of
        rank.is_ending = True
        if len(rank.threads) == 1:
            return
        waiting: Any = executors._threads_queues
        for thread, work in list(waiting.items()):
            record = self._records.get(thread)
            if record is not None and record.of is rank:
                work.put(None)
        while others := [each for each in rank.threads if each is not me and not each.is_daemon]:
            self._wait_for_thread(me, others[0], None, is_at_end=True)
        for daemon in [each for each in rank.threads if each is not me]:
            self.steps.host.send_request(CancelThread(daemon.number))
            self._wait_for_thread(me, daemon, None, is_at_end=True)

    def _thread_sort_key(self, thread: threading.Thread) -> tuple[int, ...]:
        """Return the sort key of a thread: those outside the simulation first, then ranks' in order of start."""
        record = self._records.get(thread)
        return () if record is None else (record.number,)

    def _has_external_threads(self) -> bool:
        self._external_threads = [thread for thread in self._external_threads if _is_alive_in_system(thread)]
        return bool(self._external_threads)


def _wrap_unraisable_hook(original: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the replacement of `sys.unraisablehook`: the end of a run in `__del__` or an exit handler is no error."""
    return lambda unraisable: None if isinstance(unraisable.exc_value, RankUnwound) else original(unraisable)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for a log record that an executor writes because its thread is being ended early."""
    return record.exc_info is None or record.exc_info[0] is not RankUnwound


def _is_alive_in_system(thread: Any) -> bool:
    """True until the operating system has ended a thread; `is_alive` of a rank's thread is about the simulation."""
    return thread.ident in sys._current_frames()
