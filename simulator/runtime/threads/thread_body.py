"""What a thread that a rank has started does from its beginning to its end.

In a file of its own, as `rank_body.py` is: what is called from here is the program's (`call_sites.STARTS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddpsim.simulator.accesses import Access, Mode, Object
from ddpsim.simulator.errors import is_internal
from ddpsim.simulator.events import THREAD_ENDED, THREAD_RAISED, EventKind
from ddpsim.simulator.kernel.lifecycle import all_threads_of
from ddpsim.simulator.kernel.requests import Checkpoint, Note
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.threads.lock_steps import LockHost, LockSteps
from ddpsim.simulator.runtime.threads.thread_errors import ThreadErrors


class ThreadBody:
    """Runs what threads were started with, and catches what they raise."""

    def __init__(
        self,
        host: LockHost,
        steps: LockSteps,
        *,
        enter: Callable[[], object],
        errors: ThreadErrors,
        leave: Callable[[RankThread, Any], None],
    ) -> None:
        """`enter` prepares a new thread, on itself; `leave` is called before it gives the baton away for good."""
        self._host = host
        self._steps = steps
        self._enter = enter
        self._errors = errors
        self._leave = leave

    def run(self, me: RankThread, thread: Any, own_run: Callable[[], None] | None) -> None:
        """What a new thread does: wait for the baton, run, and give the baton away."""
        how = Change.UNWIND
        try:
            how = self._run_with_the_baton(me, thread, own_run)
            self._end(me, thread, how)
        except BaseException:  # an interrupt, or what the program's own hook of exceptions raises
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
                if isinstance(error, Exception) and is_internal(error):
                    self._host.break_off_by_bug(error)
                    return Change.UNWIND
                how = Change.RAISE
                self._host.ask(Note(EventKind.NOTE, f"{THREAD_RAISED}{type(me.fault or error).__name__}"))
                self._errors.add(me, me.fault or error)
                thread._invoke_excepthook(thread)
        end = Access(thread_object(me), Mode.CONTRIBUTE), Access(all_threads_of(me.rank), Mode.CONTRIBUTE)
        self._host.ask(Checkpoint(end))
        self._steps.touch(me, *end)
        self._host.ask(Note(EventKind.NOTE, THREAD_ENDED))
        return how


def thread_object(thread: RankThread) -> Object:
    """What is touched by a thread's end, and by who asks for it."""
    return ("thread", thread.number)


def restore_run(thread: Any, own_run: Callable[[], None] | None) -> None:
    """Let a thread have its class's method `run` again, or the one of its own that it had."""
    if own_run is None:
        del thread.run
    else:
        thread.run = own_run
