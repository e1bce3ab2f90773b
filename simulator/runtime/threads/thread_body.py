"""The function that a thread started by a rank runs from its beginning to its end, and the exceptions of such threads.

It has a file of its own, as `rank_body.py` has: functions called from here belong to the program (`call_sites.STARTS`).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddpsim.simulator.accesses import Access, AccessMode, Object
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.thread_findings import thread_error_finding
from ddpsim.simulator.errors import error_line, is_internal_error
from ddpsim.simulator.events import THREAD_ENDED, THREAD_RAISED, EventKind
from ddpsim.simulator.kernel.lifecycle import threads_object
from ddpsim.simulator.kernel.requests import Checkpoint, WriteNote
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.runtime.call_sites import format_user_traceback, site_of_error
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.threads.lock_steps import LockHost, LockSteps
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.wording import values_by_key


class ThreadError(NamedTuple):
    """An exception that a thread started by a rank raised."""

    rank: int
    thread: str
    line: str
    """The exception's type and message."""
    site: Site | None
    traceback: str


def thread_findings(errors: Iterable[ThreadError]) -> list[Finding]:
    """Return the findings: one for all ranks that raised the same error at the same line."""
    alike = values_by_key(((error.thread, error.line, error.site), error) for error in errors)
    return [
        thread_error_finding(tuple(sorted({error.rank for error in each})), *kind, each[0].traceback)
        for kind, each in alike.items()
    ]


def describe_thread_error(thread: RankThread, error: BaseException) -> ThreadError:
    """Describe an exception that a thread raised."""
    return ThreadError(thread.rank, thread.name, error_line(error), site_of_error(error), format_user_traceback(error))


class ThreadMain:
    """Runs the target functions of threads that a rank started, and catches their exceptions."""

    def __init__(
        self,
        host: LockHost,
        steps: LockSteps,
        *,
        enter: Callable[[], object],
        errors: dict[object, ThreadError],
        leave: Callable[[RankThread, Any], None],
    ) -> None:
        """`enter` runs first on each new thread. `leave` runs at its end, before another thread gets its turn."""
        self._host = host
        self._steps = steps
        self._enter = enter
        self._errors = errors
        self._leave = leave

    def run_thread(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> None:
        """Wait for the thread's first turn, run its target function, and end the thread's turn for good."""
        how = TaskChange.UNWIND
        try:
            how = self._run_once_it_has_baton(me, thread, own_run)
            self._end_thread(me, thread, how)
        except BaseException:  # an interrupt, or an error of the program's own `threading.excepthook`
            self._end_thread(me, thread, how)

    def _end_thread(self, me: RankThread, thread: Any, how: TaskChange) -> None:
        self._leave(me, thread)
        self._host.finish_thread(me, how)

    def _run_once_it_has_baton(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> TaskChange:
        host = self._host
        try:
            me.wait_for_baton()  # inside, as for the thread of a rank's program
            host.connect_task(me)
            restore_run_method(thread, own_run)
            if not host.is_unwinding(me):
                self._enter()
                return self._run_target(me, thread)
        except Exception as error:  # a bug of ddpsim must not leave the other threads asleep
            host.abort_run_by_bug(error)
        return TaskChange.UNWIND

    def _run_target(self, me: RankThread, thread: Any) -> TaskChange:
        how = TaskChange.RETURN
        try:
            thread.run()
        except (RankUnwound, RankReturned, SystemExit):
            pass
        except BaseException as error:
            if not self._host.is_unwinding(me):
                if isinstance(error, Exception) and is_internal_error(error):
                    self._host.abort_run_by_bug(error)
                    return TaskChange.UNWIND
                how = TaskChange.RAISE
                self._host.send_request(WriteNote(EventKind.NOTE, f"{THREAD_RAISED}{type(me.fault or error).__name__}"))
                found = describe_thread_error(me, me.fault or error)
                self._errors.setdefault(found[:4], found)  # equal errors of a rank at one line count once
                thread._invoke_excepthook(thread)
        end = (
            Access(thread_end_object(me), AccessMode.CONTRIBUTE),
            Access(threads_object(me.rank), AccessMode.CONTRIBUTE),
        )
        self._host.send_request(Checkpoint(end))
        self._steps.report_accesses(me, *end)
        self._host.send_request(WriteNote(EventKind.NOTE, THREAD_ENDED))
        return how


def thread_end_object(thread: RankThread) -> Object:
    """Return the name that the exploration of schedules uses for a thread's end, which `is_alive` and `join` read."""
    return ("thread", thread.number)


def restore_run_method(thread: Any, own_run: Callable[[], None] | None) -> None:
    """Give a `threading.Thread` its original `run` method back: that of its class, or its instance attribute."""
    if own_run is None:
        del thread.run
    else:
        thread.run = own_run
