"""Threads of ranks: started, joined, asked whether they are alive, and ended with their rank.

What is replaced while an execution runs, and put back afterwards; each replacement does something else on the thread of
a rank only:

- `threading.Thread.start`, `join`, `is_alive`; `threading.enumerate` and `active_count`, which tell a rank of its own;
- `threading.Lock`, `RLock`, `_allocate_lock`, `queue.SimpleQueue`, of which Python makes all the rest, and
  `threading.Event.is_set`, which looks without a lock;
- `threading._time` and `queue.time`, the clock under their names for it;
- `threading._counter`, `ThreadPoolExecutor._counter` and what executors have for the end of a process (names.py);
- the sets of executors and of `concurrent.futures.wait` and `as_completed` (order.py);
- how asyncio makes its event loops (event_loops.py).

Not covered: `_thread` itself, native threads, locks made before the run, or by a name bound before the run (`from
threading import Lock`), or while a module is imported, unless it is the program's own and the rank has a process to
itself. Threads whose business is with other processes or with real time stay outside as they are: those of
multiprocessing, of a ProcessPoolExecutor, of a DataLoader, of tqdm, and what a loop of asyncio starts that is none of
the rank's. A rank that waits for those waits in real time, once no other thread can go on.

A rank ends as a process does: when its program is over it waits for its threads, those of executors are told to end,
and what is left then, its daemon threads, is carried out of what it runs. A thread that raises ends alone.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures._base as futures
import concurrent.futures.thread as executors
import logging
import queue
import sys
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ddpsim.simulator.accesses import Access, Mode, Object
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.thread_findings import thread_error
from ddpsim.simulator.events import THREAD_ENDED, THREAD_RAISED, EventKind
from ddpsim.simulator.kernel.lifecycle import all_threads_of
from ddpsim.simulator.kernel.requests import Block, Cancel, Checkpoint, Note, ReadClock, SawEnd
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.runtime.call_sites import site_here, site_of_error, traceback_text
from ddpsim.simulator.runtime.one_core import shares_core_of_starter
from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.threads.event_loops import is_of_rank, loop_maker
from ddpsim.simulator.runtime.threads.lock_steps import Host, LockSteps
from ddpsim.simulator.runtime.threads.locks import RankLock, RankRLock
from ddpsim.simulator.runtime.threads.order import acquiring, ordered_results, ordered_set, when_made
from ddpsim.simulator.runtime.threads.process_state import IsShutDown, ShutdownLock, counter
from ddpsim.simulator.runtime.threads.queues import RankSimpleQueue
from ddpsim.simulator.runtime.threads.waiting import is_importing, is_importing_library, maker
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.waits import ThreadWait

_LOKY = ("loky", "joblib.externals.loky")
_OUTSIDE = ("multiprocessing", "concurrent.futures.process", "torch.utils.data", "tqdm", *_LOKY)
"""The modules whose threads are left outside."""

_SILENT = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "torch.utils.data",
    "tqdm",
    *[f"{package}.backend.queues" for package in _LOKY],
)
"""Those of them for which no rank waits at a lock."""

_EXECUTOR: Any = executors.ThreadPoolExecutor
_ABSENT: Any = object()
"""In the place of a built-in function that a module has not replaced."""

_EXECUTORS_LOG = logging.getLogger("concurrent.futures")


class ThreadError(NamedTuple):
    """What a thread that a rank started raised."""

    rank: int
    thread: str
    line: str
    """Type and message."""
    site: Site | None
    traceback: str


def thread_findings(errors: Iterable[ThreadError]) -> list[Finding]:
    """The same error at the same line once for all ranks."""
    alike: dict[tuple[str, str, Site | None], list[ThreadError]] = {}
    for error in errors:
        alike.setdefault((error.thread, error.line, error.site), []).append(error)
    return [
        thread_error(tuple(sorted({error.rank for error in each})), *kind, each[0].traceback)
        for kind, each in alike.items()
    ]


class Threads:
    """The threads that the ranks of one execution start."""

    def __init__(self, host: Host, enter: Callable[[], object], *, owns_modules: bool = False) -> None:
        """`enter` prepares a new thread, on itself; with `owns_modules` locks of a program's modules are the rank's."""
        self._host = host
        self._outlasts = is_importing_library if owns_modules else is_importing
        """Whether what is made now lasts longer than a simulation, or is of a library that may have its own threads."""
        self._enter = enter
        self.aside = self._steps = LockSteps(host)
        self._steps.has_outsiders = self._has_outsiders
        self._records: WeakKeyDictionary[threading.Thread, RankThread] = WeakKeyDictionary()
        """Every thread started by a rank that somebody may still ask for."""
        self._leaving: list[threading.Thread] = []
        """Threads that have given away the baton for good, and may not have ended yet."""
        self._outsiders: list[threading.Thread] = []
        self._errors: dict[tuple[str, str, Site | None], tuple[list[int], str]] = {}
        """By thread, error and line: the ranks, and the traceback of the first."""
        self._originals: list[tuple[Any, str, Any]] = []

    # --- what is replaced ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Replace what is listed above."""
        assert not self._originals, "installed twice"
        steps, now = self._steps, self._on_ranks(lambda: float(self._host.ask(ReadClock())))
        thread: Any = threading.Thread
        for owner, name, replacement in (
            (thread, "start", self._start),
            (thread, "join", self._join),
            (_thread, "start_new_thread", self._start_plain),
            (_thread, "start_new", self._start_plain),
            (thread, "is_alive", self._is_alive),
            (threading, "enumerate", self._of_rank(list)),
            (threading, "active_count", self._of_rank(len)),
            (threading, "Lock", lambda original: self._maker(original, RankLock)),
            (threading, "RLock", lambda original: self._maker(original, RankRLock)),
            (threading, "_allocate_lock", self._inner_lock_maker),
            (threading.Event, "is_set", self._is_set),
            (threading, "_time", now),
            (threading, "_counter", lambda original: counter(steps, original, start=1)),
            (queue, "SimpleQueue", self._queue_maker),
            (queue, "time", now),
            (_EXECUTOR, "_counter", lambda original: staticmethod(counter(steps, original, start=0))),
            (executors, "_global_shutdown_lock", lambda original: ShutdownLock(steps, original)),
            (executors, "_shutdown", lambda original: IsShutDown(steps, original)),
            (executors, "set", lambda _: ordered_set(steps, self._number_of)),
            (futures, "set", lambda _: ordered_set(steps, when_made)),
            (futures, "DoneAndNotDoneFutures", lambda original: ordered_results(steps, original)),
            (futures, "_AcquireFutures", lambda original: acquiring(steps, original)),
            (BaseSelectorEventLoop, "__init__", partial(loop_maker, lambda: steps.running() is not None)),
        ):
            original = vars(owner).get(name, _ABSENT)
            self._originals.append((owner, name, original))
            setattr(owner, name, replacement(original))
        _EXECUTORS_LOG.addFilter(_is_worth_telling)

    def uninstall(self) -> None:
        """Put everything back. May be called twice."""
        self._steps.end()
        _EXECUTORS_LOG.removeFilter(_is_worth_telling)
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        waiting: Any = executors._threads_queues
        for thread in [thread for thread in waiting if thread in self._records]:
            del waiting[thread]  # at the end of the process nobody is to wait for a thread that was left behind

    def join(self) -> None:
        """Wait for the threads that are out of what they ran, so that none is left but those that cling to it."""
        for thread, record in list(self._records.items()):
            if record.is_abandoned:
                threading.Thread.join(thread, timeout=0.2)
                self._leaving = [each for each in self._leaving if each is not thread]
        for thread in self._leaving:
            threading.Thread.join(thread)
        self._leaving = []

    def _on_ranks(self, clock: Callable[[], float]) -> Callable[[Callable[[], float]], Callable[[], float]]:
        def replacement(original: Callable[[], float]) -> Callable[[], float]:
            return lambda: original() if self._steps.running() is None else clock()

        return replacement

    def _maker(self, original: Any, make: Callable[..., Any]) -> Any:
        """For what makes a lock, or a queue on one."""
        steps = self._steps

        def lock_or_queue(*arguments: Any) -> Any:
            me, caller = steps.running(), sys._getframe(1)
            if me is None or self._outlasts(caller):
                return original(*arguments)
            return make(steps, me, *arguments, is_outsiders=maker(caller).startswith(_OUTSIDE))

        if not isinstance(original, type):
            return wraps(original)(lock_or_queue)
        # A class stays one, for annotations and isinstance.
        return type(original.__name__, (), {"__new__": lambda cls, *arguments: lock_or_queue(*arguments)})

    def _queue_maker(self, original: Any) -> Any:
        return self._maker(original, lambda steps, me, **options: RankSimpleQueue(steps, me, original(), **options))

    def _inner_lock_maker(self, original: Any) -> Any:
        """For what a condition waits at: a lock of ours if the lock of the condition is one."""

        def allocate_lock() -> Any:
            me = self._steps.running()
            lock = None if me is None else getattr(sys._getframe(1).f_locals.get("self"), "_lock", None)
            if me is None or not isinstance(lock, (RankLock, RankRLock)):
                return original()
            return RankLock(self._steps, me, is_inner=True, is_outsiders=lock.is_outsiders)

        return allocate_lock

    def _is_set(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def is_set(event: Any) -> bool:
            lock = event._cond._lock
            if isinstance(lock, RankLock):
                lock.look(is_in_vain=not original(event))
            return original(event)

        return is_set

    # --- a thread's life ----------------------------------------------------------------------------------------------

    def _start(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def start(thread: Any) -> None:
            me = self._steps.running()
            if me is None or thread in self._records or not getattr(thread, "_initialized", False):
                original(thread)
            elif _is_outside(thread):
                self._really(original, thread)
                if not _module(thread).startswith(_SILENT):
                    self._outsiders.append(thread)
            else:
                self._start_thread(original, thread, me)

        return start

    def _start_plain(self, original: Callable[..., int]) -> Callable[..., int]:
        """A thread without an object is a thread of its rank like another."""

        def start(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /) -> int:
            if self._steps.running() is None:
                return original(function, args, kwargs or {})
            thread = threading.Thread(target=function, args=args, kwargs=kwargs, daemon=True)
            thread.start()
            assert thread.ident is not None
            return thread.ident

        return start

    def _start_thread(self, original: Callable[[Any], None], thread: Any, me: RankThread) -> None:
        child = RankThread(None, me.of, thread.name, is_daemon=thread.daemon, started_at=site_here())
        child.thread = thread
        own_run = vars(thread).get("run")
        thread.run = lambda: self._run(child, thread, own_run)
        thread._daemonic = True  # one that clings to what it runs must not keep the process from its end
        try:
            self._really(original, thread)
        except RuntimeError:
            _restore_run(thread, own_run)
            raise
        finally:
            thread._daemonic = child.is_daemon
        child.ident = thread.ident or 0
        shares_core_of_starter(thread)
        self._records[thread] = child
        self._leaving = [each for each in self._leaving if _is_running(each)]
        self._host.start_thread(child)

    def _really(self, original: Callable[[Any], None], thread: Any) -> None:
        """Start a thread as Python does, with a real event to tell that it runs."""
        with self._steps:
            thread._started = threading.Event()
            original(thread)

    def _run(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> None:
        """What a new thread does: wait for the baton, run, and give the baton away."""
        how = Change.UNWIND
        try:
            how = self._run_with_the_baton(me, thread, own_run)
            self._end(me, thread, how)
        except BaseException:  # an interrupt, or what the program's own hook of exceptions raises
            self._end(me, thread, how)

    def _end(self, me: RankThread, thread: Any, how: Change) -> None:
        if not me.is_abandoned:
            self._leaving.append(thread)
            me.thread = None
        self._host.finish(me, how)

    def _run_with_the_baton(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> Change:
        host = self._host
        try:
            me.baton.acquire()  # inside, as for the thread of a rank's program
            host.adopt(me)
            _restore_run(thread, own_run)
            if not host.is_unwinding(me):
                self._enter()
                return self._run_to_its_end(me, thread)
        except Exception as error:  # a bug of ours must not leave the others asleep
            host.break_off_by_bug(error)
        return Change.UNWIND

    def _run_to_its_end(self, me: RankThread, thread: Any) -> Change:
        how = Change.RETURN
        try:
            thread.run()
        except (RankUnwound, RankReturned, SystemExit):
            pass
        except BaseException as error:
            if not self._host.is_unwinding(me):
                how = Change.RAISE
                self._tell(me, me.fault or error)
                thread._invoke_excepthook(thread)
        end = Access(_object(me), Mode.CONTRIBUTE), Access(all_threads_of(me.rank), Mode.CONTRIBUTE)
        self._host.ask(Checkpoint(end))
        self._steps.touch(me, *end)
        self._host.ask(Note(EventKind.NOTE, THREAD_ENDED))
        return how

    def _tell(self, me: RankThread, error: BaseException) -> None:
        self._host.ask(Note(EventKind.NOTE, f"{THREAD_RAISED}{type(error).__name__}"))
        kind = (me.name, one_line(error), site_of_error(error))
        self._errors.setdefault(kind, ([], traceback_text(error)))[0].append(me.rank)

    @property
    def errors(self) -> list[ThreadError]:
        """What threads raised, the same error at the same line once for each rank, in the order they did."""
        return [
            ThreadError(rank, *kind, traceback)
            for kind, (ranks, traceback) in self._errors.items()
            for rank in dict.fromkeys(ranks)
        ]

    def _join(self, original: Callable[..., None]) -> Callable[..., None]:
        def join(thread: Any, timeout: float | None = None) -> None:
            me, other = self._steps.running(), self._records.get(thread)
            if me is None or other is None or other is me:
                return original(thread, timeout)
            if self._wait_for(me, other, timeout) and not other.is_abandoned:
                original(thread)  # it has nothing left to do that takes time
            return None

        return join

    def _is_alive(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def is_alive(thread: Any) -> bool:
            me, other = self._steps.running(), self._records.get(thread)
            if me is None or other is None:
                return original(thread)
            look = Access(_object(other), Mode.READ)
            self._steps.stand_before(me, (look,), is_in_vain=not other.is_finished and other is not me)
            self._steps.touch(me, look)
            return not other.is_finished

        return is_alive

    def _of_rank(self, kind: Callable[[list[Any]], Any]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """For what tells of all threads of a process, as a list or as their number."""

        def replacement(original: Callable[[], Any]) -> Callable[[], Any]:
            def threads() -> Any:
                me = self._steps.running()
                if me is None:
                    return original()
                look = Access(all_threads_of(me.rank), Mode.READ)
                self._steps.stand_before(me, (look,))
                self._steps.touch(me, look)
                return kind([each.thread for each in me.of.threads])

            return threads

        return replacement

    def _wait_for(self, me: RankThread, other: RankThread, timeout: float | None, *, is_at_end: bool = False) -> bool:
        """Wait until another thread has ended. False if the time-out came first."""
        host, is_look = self._host, timeout is not None and timeout <= 0
        self._steps.stand_before(me, (), is_in_vain=is_look and not other.is_finished)
        if not other.is_finished and not is_look:
            wait = ThreadWait(other.number, other.name, site_here(), is_at_end)
            host.ask(Note(EventKind.WAIT, f"the end of thread {other.name!r}"))
            host.ask(Block(wait, timeout))
            host.ask(Note(EventKind.DONE, f"the end of thread {other.name!r}"))
        if is_look or timeout is not None:
            self._steps.touch(me, Access(_object(other), Mode.READ))
        if other.is_finished and host.is_observed:
            host.ask(SawEnd(other.number))
        return other.is_finished

    # --- the end of a rank --------------------------------------------------------------------------------------------

    def outlast(self, me: RankThread) -> None:
        """What a process does when its program is over: let all other threads of the rank end."""
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
            self._wait_for(me, others[0], None, is_at_end=True)
        for daemon in [each for each in rank.threads if each is not me]:
            self._host.ask(Cancel(daemon.number))
            self._wait_for(me, daemon, None, is_at_end=True)

    def _number_of(self, thread: threading.Thread) -> tuple[int, ...]:
        """Sorts threads as they started, those outside first."""
        record = self._records.get(thread)
        return () if record is None else (record.number,)

    def _has_outsiders(self) -> bool:
        self._outsiders = [thread for thread in self._outsiders if _is_running(thread)]
        return bool(self._outsiders)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """False for a thread of an executor that is carried out of what it runs."""
    return record.exc_info is None or record.exc_info[0] is not RankUnwound


def _object(thread: RankThread) -> Object:
    return ("thread", thread.number)


def _restore_run(thread: Any, own_run: Callable[[], None] | None) -> None:
    if own_run is None:
        del thread.run
    else:
        thread.run = own_run


def _is_running(thread: Any) -> bool:
    """True until the system has ended a thread; `is_alive` of a rank's thread speaks of the simulation."""
    return thread.ident in sys._current_frames()


def _module(thread: Any) -> str:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) or type(thread).__module__


def _is_outside(thread: Any) -> bool:
    loop = asyncio._get_running_loop()
    return _module(thread).startswith(_OUTSIDE) or (loop is not None and not is_of_rank(loop))
