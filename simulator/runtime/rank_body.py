"""The function that a rank's main thread runs from its beginning to its end, for rank threads and rank processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ddpsim.simulator.errors import error_line, is_internal_error
from ddpsim.simulator.kernel.requests import ProgramRaised, ProgramReturned, RankError
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.runtime.call_sites import site_of_error
from ddpsim.simulator.runtime.leaving import find_propagating_error
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound, is_tried
from ddpsim.simulator.runtime.thread_host import ThreadHost

RecordError = Callable[[int, BaseException], None]


class RankMain:
    """Runs the program on a rank's thread, in the environment that `enter_rank` makes, and catches its exceptions."""

    def __init__(
        self,
        program: Callable[[int], Any],
        *,
        enter_rank: Callable[[int], AbstractContextManager[object]],
        record_error: RecordError,
        record_leaving: RecordError,
    ) -> None:
        """`record_leaving` records an exception that was about to leave a rank's program when the run ended."""
        self._program = program
        self._enter_rank = enter_rank
        self._record_error = record_error
        self._record_leaving = record_leaving

    def run_rank(self, host: ThreadHost, me: RankThread) -> None:
        """Wait for the rank's first turn, run the program, report the result, and end the rank's turn for good."""
        how = TaskChange.UNWIND
        try:
            how = self._run_program(host, me)
            _end_rank(host, me, how)
        except RankUnwound:  # an interrupt came as the program ended: the thread still has the baton
            _end_rank(host, me, how)

    def _run_program(self, host: ThreadHost, me: RankThread) -> TaskChange:
        __tracebackhide__ = True  # pytest then begins with the program
        how = TaskChange.UNWIND
        try:
            me.wait_for_baton()  # inside `try`: the end of a run may interrupt a thread that has just got the baton
            if not host.is_stopping:
                with self._enter_rank(me.rank):
                    value = self._program(me.rank)
                    host.threads.wait_for_other_threads(me)
                # Whatever a program does on its way out of a finished execution is a consequence, not a finding.
                if not host.is_stopping:
                    me.of.value, how = value, TaskChange.RETURN
        except RankUnwound as unwound:
            error = find_propagating_error(unwound, RankUnwound, me.handled_at_end)
            if error is not None and not is_tried(error):
                self._record_leaving(me.rank, error)
        except BaseException as error:
            error = me.fault or error  # C++ may have wrapped what a fault raised
            if isinstance(error, RankReturned) or (isinstance(error, SystemExit) and error.code in (None, 0)):
                how = TaskChange.RETURN
            elif not host.is_stopping:
                if isinstance(error, Exception) and is_internal_error(error):
                    host.abort_run_by_bug(error)
                    return how
                how = TaskChange.RAISE
                line, site = error_line(error), site_of_error(error)
                host.send_request(ProgramRaised(RankError(type(error).__name__, line, site)))  # unwinds after a trial
                self._record_error(me.rank, error)
            elif error is me.handled_at_end:
                # The run ended in an atexit handler, or where all is caught and raised again.
                self._record_leaving(me.rank, error)
            _wait_for_other_threads(host, me)
        return how


def _end_rank(host: ThreadHost, me: RankThread, how: TaskChange) -> None:
    try:
        if how is TaskChange.RETURN and not host.is_stopping:
            host.send_request(ProgramReturned())
            host.hazards.program_returned(me.rank, me.of.value)
            host.hazards.rank_ended(me.rank)
    except Exception as error:  # a bug of ddpsim must not leave the other threads asleep
        host.abort_run_by_bug(error)
    finally:
        host.finish_thread(me, how)


def _wait_for_other_threads(host: ThreadHost, me: RankThread) -> None:
    """Wait for the other threads of a rank whose program has raised an exception."""
    try:
        host.threads.wait_for_other_threads(me)
    except RankUnwound:
        pass
    except Exception as error:  # a bug of ddpsim, as above
        host.abort_run_by_bug(error)
