"""The function that a rank's thread runs from its beginning to its end, and the exceptions that such threads raise.

It has a file of its own, as `rank_body.py` has: functions called from here belong to the program (`call_sites.STARTS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddpsim.simulator.accesses import Access, Mode, Object
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.thread_findings import thread_error
from ddpsim.simulator.errors import is_internal
from ddpsim.simulator.events import THREAD_ENDED, THREAD_RAISED, EventKind
from ddpsim.simulator.kernel.lifecycle import all_threads_of
from ddpsim.simulator.kernel.requests import Checkpoint, Note
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.runtime.call_sites import site_of_error, traceback_text
from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.threads.lock_steps import LockHost, LockSteps
from ddpsim.simulator.verdict import Finding


class ThreadError(NamedTuple):
    """An exception that a rank's thread raised."""

    rank: int
    thread: str
    line: str
    """Type and message."""
    site: Site | None
    traceback: str


def thread_findings(errors: Iterable[ThreadError]) -> list[Finding]:
    """Return the findings: one for all ranks that raised the same error at the same line."""
    alike: dict[tuple[str, str, Site | None], list[ThreadError]] = {}
    for error in errors:
        alike.setdefault((error.thread, error.line, error.site), []).append(error)
    return [
        thread_error(tuple(sorted({error.rank for error in each})), *kind, each[0].traceback)
        for kind, each in alike.items()
    ]


def thread_error_of(thread: RankThread, error: BaseException) -> ThreadError:
    """Describe an exception that a thread raised."""
    return ThreadError(thread.rank, thread.name, one_line(error), site_of_error(error), traceback_text(error))


class ThreadBody:
    """Runs the targets of threads and catches their exceptions."""

    def __init__(
        self,
        host: LockHost,
        steps: LockSteps,
        *,
        enter: Callable[[], object],
        errors: dict[object, ThreadError],
        leave: Callable[[RankThread, Any], None],
    ) -> None:
        """`enter` runs first on each new thread. `leave` runs before the thread gives the baton away for good."""
        self._host = host
        self._steps = steps
        self._enter = enter
        self._errors = errors
        self._leave = leave

    def run(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> None:
        """Wait for the baton, run the thread's target, and give the baton away."""
        how = Change.UNWIND
        try:
            how = self._run_with_the_baton(me, thread, own_run)
            self._end(me, thread, how)
        except BaseException:  # an interrupt, or an error of the program's own `threading.excepthook`
            self._end(me, thread, how)

    def _end(self, me: RankThread, thread: Any, how: Change) -> None:
        self._leave(me, thread)
        self._host.finish(me, how)

    def _run_with_the_baton(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> Change:
        host = self._host
        try:
            me.sleep()  # inside, as for the thread of a rank's program
            host.adopt(me)
            restore_run(thread, own_run)
            if not host.is_unwinding(me):
                self._enter()
                return self._run_to_its_end(me, thread)
        except Exception as error:  # a bug of ddpsim must not leave the other threads asleep
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
                if isinstance(error, Exception) and is_internal(error):
                    self._host.break_off_by_bug(error)
                    return Change.UNWIND
                how = Change.RAISE
                self._host.ask(Note(EventKind.NOTE, f"{THREAD_RAISED}{type(me.fault or error).__name__}"))
                found = thread_error_of(me, me.fault or error)
                self._errors.setdefault(found[:4], found)  # equal errors of a rank at one line count once
                thread._invoke_excepthook(thread)
        end = Access(thread_object(me), Mode.CONTRIBUTE), Access(all_threads_of(me.rank), Mode.CONTRIBUTE)
        self._host.ask(Checkpoint(end))
        self._steps.touch(me, *end)
        self._host.ask(Note(EventKind.NOTE, THREAD_ENDED))
        return how


def thread_object(thread: RankThread) -> Object:
    """Return the object that a thread's end writes, and that `is_alive` and `join` read, for the exploration."""
    return ("thread", thread.number)


def restore_run(thread: Any, own_run: Callable[[], None] | None) -> None:
    """Restore a thread's `run` method: that of its class, or the instance attribute that it had."""
    if own_run is None:
        del thread.run
    else:
        thread.run = own_run
