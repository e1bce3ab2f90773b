"""Carries out one run whose ranks are threads, and watches it: ends it when it takes too long or is blocked.

The caller's own thread does the watching. A rank that computes may run for `Budget.seconds`. A rank that is blocked in
a lock, a socket or native code is `stuck` after `Budget.stuck_seconds`. The two are distinguished by the time for which
the thread has had a core, or waited for one.

A rank that imports a module gets more time: on a busy machine it waits for the disk, and an interrupted import would
leave a half-initialized module in the process. A rank that compiles does, too: torch.compile waits for a C++ compiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.diagnosis.rank_errors import mark_consequences
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import RunEnding
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.baton import stack_of_thread
from ddpsim.simulator.runtime.call_sites import frames_outwards
from ddpsim.simulator.runtime.host import CallWatch
from ddpsim.simulator.runtime.one_core import threads_started_here_share_a_core
from ddpsim.simulator.runtime.rank_body import RankMain
from ddpsim.simulator.runtime.rank_thread import RankThread, clear_pending_interrupt
from ddpsim.simulator.runtime.stopwatch import core_seconds, has_child_processes
from ddpsim.simulator.runtime.thread_host import MoveData, ThreadHost
from ddpsim.simulator.runtime.threads import thread_findings
from ddpsim.simulator.verdict import Finding

if TYPE_CHECKING:
    from ddpsim.simulator.runtime.isolation import Isolation


_WATCH_SECONDS = 0.05
_BUSY_SHARE = 0.1
"""A thread that uses more than this share of a CPU core computes; one that polls, for example a socket, uses less."""

_TIMES_FOR_PREPARING = 10
"""A rank that imports a module, or compiles, may be blocked for this many times the usual limit."""

_IMPORTS = "<frozen importlib._bootstrap>"
_COMPILES = frozenset({"torch._dynamo.convert_frame", "torch._inductor.compile_fx"})
"""Modules of torch whose functions are on the stack only while torch.compile compiles, not when that code runs."""

_GRACE_SECONDS = 1.0
"""Seconds in which a rank has to notice the end of the run. Then it is interrupted, later abandoned."""


class ExecutionWatcher:
    """Starts and ends one run, on a thread that belongs to no rank."""

    def __init__(self, host: ThreadHost, kernel: Kernel, *, share_core: bool) -> None:
        self._host, self._baton, self._prompt_server = host, host.baton, host.prompt_server
        self._kernel = kernel
        self._share_core = share_core

    def run_to_end(self) -> None:
        """Start the run and wait for its end. A passed limit or an interrupt (Ctrl-C) ends the run early."""
        try:
            self._start_ranks()
            self._watch_limits()
        except BaseException as error:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self._end_early(is_interrupt=is_interrupt)
            while not self._baton.has_ended:
                try:
                    self._await_ranks()
                except KeyboardInterrupt:  # a second Ctrl-C changes nothing: the ranks are being unwound
                    continue
            if not is_interrupt:
                raise

    def _start_ranks(self) -> None:
        """Start every rank's main thread and let the rank that was chosen first run."""
        with threads_started_here_share_a_core() if self._share_core else nullcontext():
            for rank in self._host.ranks:
                try:
                    rank.main.start_main_thread()
                except RuntimeError as error:
                    raise UsageError(
                        f"cannot start a thread for rank {rank.rank} of {len(self._host.ranks)} ({error}): "
                        "use fewer ranks, or raise the limit of processes (`ulimit -u`)"
                    ) from error
        self._baton.pass_to_thread(None, self._kernel.first_task())

    def _watch_limits(self) -> None:
        """Wait for the end of the run, read lines for debuggers, and end the run when a limit passes."""
        budget, clock = self._kernel.run.budget, self._prompt_server.clock
        seen: tuple[object, ...] = ()
        start = seen_at = clock.elapsed_seconds()
        cpu_seen = 0.0
        while not self._baton.has_ended:
            if self._baton.over.acquire(timeout=_WATCH_SECONDS):
                self._prompt_server.serve_request()
                continue
            if self._host.is_stopping:
                return self._await_ranks()
            now = clock.elapsed_seconds()
            rank = self._baton.running
            self._kernel.run.note_progress(now - start)
            progress = (self._host.steps, rank and rank.number)
            cpu = 0.0 if rank is None else _core_seconds_of_thread(rank)
            if progress != seen or cpu - cpu_seen > _BUSY_SHARE * budget.stuck_seconds:
                seen, seen_at, cpu_seen = progress, now, cpu
            if rank is not None and (rank.is_outside or _has_child_processes(rank)):
                seen_at = now
            asleep = now - seen_at
            if rank is not None and asleep > budget.stuck_seconds and asleep > _allowed_blocked_seconds(rank, budget):
                return self._stop_at_limit(RunEnding.STUCK, rank, grace_seconds=0.1)  # it will not notice the end
            if now - start > budget.seconds:
                return self._stop_at_limit(RunEnding.SECONDS, rank)

    def _stop_at_limit(self, ending: RunEnding, rank: RankThread | None, grace_seconds: float = _GRACE_SECONDS) -> None:
        task, stack = (None, None) if rank is None else (rank.task, stack_of_thread(rank))
        self._kernel.stop_at_limit(ending, task, stack)
        self._await_ranks(grace_seconds)

    def _await_ranks(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """Wait until every rank has left its program. Interrupt a rank that does not notice the end, then abandon it.

        After that the programs of the other ranks are ended early.
        """
        baton, kernel = self._baton, self._kernel
        self._prompt_server.close()
        rank = baton.running
        waited_since = time.monotonic()
        interrupted = False
        while not baton.has_ended:
            if baton.over.acquire(timeout=_WATCH_SECONDS / 5):
                continue
            if baton.running is not rank:
                rank, waited_since, interrupted = baton.running, time.monotonic(), False
            elif rank is not None and time.monotonic() - waited_since > grace_seconds:
                if not interrupted:
                    interrupted, waited_since = True, time.monotonic()
                    rank.exit.interrupt_thread(rank.ident)
                elif rank.exit.claim_end():  # otherwise it is just leaving
                    kernel.abandon_task(rank.task)
                    kernel.stop_run(RunEnding.STUCK)
                    baton.pass_to_thread(rank, kernel.next_task_to_unwind())
                    clear_pending_interrupt()

    def _end_early(self, *, is_interrupt: bool) -> None:
        """End the run, even if no rank has run yet."""
        if is_interrupt:
            running = self._baton.running
            place = (None, None) if running is None else (running.task, stack_of_thread(running))
            self._kernel.stop_at_limit(RunEnding.INTERRUPTED, *place)
        self._kernel.stop_run(RunEnding.BROKEN)
        if self._baton.running is None and not self._baton.has_ended:
            for rank in self._host.ranks:
                if not rank.main.ident:
                    self._kernel.remove_unstarted_task(rank.main.task)
            self._baton.pass_to_thread(None, self._kernel.next_task_to_unwind())


def _allowed_blocked_seconds(rank: RankThread, budget: Budget) -> float:
    """Return how many seconds a rank may be blocked before it counts as stuck."""
    is_preparing = any(
        frame.f_code.co_filename == _IMPORTS or frame.f_globals.get("__name__") in _COMPILES
        for frame in frames_outwards(sys._current_frames().get(rank.ident or 0))
    )
    return budget.stuck_seconds * (_TIMES_FOR_PREPARING if is_preparing else 1)


def _has_child_processes(rank: RankThread) -> bool:
    """Return True if a thread has child processes, for which it may wait."""
    return rank.thread is not None and has_child_processes("self", rank.thread.native_id or 0)


def _core_seconds_of_thread(rank: RankThread) -> float:
    """Return the seconds for which a thread used a CPU core or waited for one.

    On a platform that does not measure this, return wall time; then no rank counts as stuck.
    """
    if sys.platform == "linux" and rank.thread is not None and rank.thread.native_id is not None:
        with suppress(OSError):  # the thread has just ended
            # The clock of a thread by its number, as MAKE_THREAD_CPUCLOCK of linux/posix-timers.h makes it;
            # pthread_getcpuclockid must not be asked about a thread that may have ended.
            number = rank.thread.native_id
            return core_seconds(~number << 3 | 6, f"/proc/self/task/{number}/schedstat")
    return time.monotonic()


class ThreadedRun:
    """One run whose ranks are threads. Other code provides process groups, isolation and the movement of data."""

    def __init__(
        self,
        program: Callable[[int], Any],
        kernel: Kernel,
        *,
        isolation: Isolation,
        move_data: MoveData,
        enter_rank: Callable[[int], AbstractContextManager[object]],
        enter_thread: Callable[[], object],
        hazards: CallWatch,
        name_parameters: outcome.NameParameters | None = None,
        share_core: bool = True,
        follows: bool = False,
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        """The exceptions that ranks raised, in that order."""
        self.leaving: dict[int, BaseException] = {}
        """The exceptions that were about to leave the ranks' programs when the run ended."""
        body = RankMain(
            program,
            enter_rank=enter_rank,
            record_error=self.errors.__setitem__,
            record_leaving=self.leaving.__setitem__,
        )
        self.host = ThreadHost(
            kernel,
            len(kernel.run.ranks),
            lambda me: body.run_rank(self.host, me),
            switch=isolation.switch_rank,
            move_data=move_data,
            hazards=hazards,
            enter_thread=enter_thread,
            follows=follows,
        )
        self._watcher = ExecutionWatcher(self.host, kernel, share_core=share_core)
        self._kernel = kernel
        self._isolation = isolation
        self._name_parameters = name_parameters

    def run(self) -> None:
        """Run the ranks to the end. After an interrupt (Ctrl-C) their programs are ended early."""
        host = self.host
        self._isolation.install()
        try:
            self._watcher.run_to_end()
        finally:
            self._isolation.uninstall()
            host.hazards.run_ended()
            for rank in host.ranks:
                if rank.main.ident and rank.main.thread is not None:
                    rank.main.thread.join(timeout=0.2 if rank.main.is_abandoned else None)
            host.threads.join_ended_threads()
        self._raise_failure()

    def findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """Return the run's findings: exceptions in the order raised, equal ones merged; then others, hazards last."""
        errors, left = map(self._describe_errors, (self.errors, dict(sorted(self.leaving.items()))))
        found = sorted(
            (*self._kernel.run.findings, *divergences), key=lambda finding: finding.code.value.startswith("hazard.")
        )
        return (
            *outcome.findings_of_errors(errors, left),
            *mark_consequences(found, {rank: error.line for rank, error in left.items()}),
            *thread_findings(self.host.threads.errors),
            *self._kernel.run.hazard_findings(),
        )

    def _describe_errors(self, errors: Mapping[int, BaseException]) -> dict[int, outcome.RaisedError]:
        poisoned = self.host.hazards.poisoned_calls
        return {
            rank: outcome.describe_error(rank, error, self._name_parameters, poisoned(rank))
            for rank, error in errors.items()
        }

    def _raise_failure(self) -> None:
        life = self._kernel.run.life
        if isinstance(life.failure, RecursionError) and life.failed_under is not None:
            self.errors.setdefault(life.failed_under, life.failure)  # the rank's own recursion left ddpsim no room
        elif life.failure is not None:
            raise life.failure
