"""One execution whose ranks are processes: forks them, runs them, and collects their results."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.diagnosis.rank_errors import LOST, led_by
from ddpsim.simulator.errors import RankLostError, UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import Ending, State
from ddpsim.simulator.rank_processes.children import Child, check_system, fork_ranks
from ddpsim.simulator.rank_processes.coordinator import Coordinator
from ddpsim.simulator.rank_processes.inbox import MoveData
from ddpsim.simulator.rank_processes.messages import unpacked
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.threads import thread_findings
from ddpsim.simulator.verdict import Finding


class ProcessRun:
    """One execution whose ranks are processes."""

    def __init__(
        self,
        config: ProcessConfig,
        kernel: Kernel,
        *,
        move_data: MoveData,
        start: Callable[[ProcessConfig], Sequence[Child]] = fork_ranks,
        director: Director | None = None,
    ) -> None:
        """`start` starts the processes of the ranks. `director` controls a run that is debugged from its beginning."""
        self._director = director
        self._config = config
        self._start = start
        self._kernel = kernel
        self._move_data = move_data
        self._children: Sequence[Child] = ()
        self._coordinator: Coordinator

    def run(self) -> None:
        """Run to the end. Raises UsageError if the system has no processes left, and any internal error."""
        check_system(self._config.world_size, forks_from_here=not self._config.is_program)
        # Ctrl-C must not raise here: the ranks could not be unwound.
        ctrl_c = CtrlC(raises=False)
        with ctrl_c, _default_sigchld():
            self._run(ctrl_c)
        ctrl_c.check()
        if self._kernel.run.life.failure is not None:
            raise self._kernel.run.life.failure

    def _run(self, ctrl_c: CtrlC) -> None:
        """Start the processes, run them, and kill those that have not ended."""
        self._children = self._start(self._config)
        self._coordinator = Coordinator(
            self._kernel,
            self._children,
            self._config,
            move_data=self._move_data,
            ctrl_c=ctrl_c,
            director=self._director,
        )
        try:
            self._coordinator.run()
            self._coordinator.collect()
        finally:
            for child in self._children:
                child.kill()
            self._coordinator.forward_output()
            for child in self._children:
                child.close()

    @property
    def went_through(self) -> bool:
        """True if all ranks returned or one raised, so that no rank would wait forever."""
        return bool(self._coordinator.raisers) or self._kernel.run.life.ending is Ending.FINISHED

    @property
    def has_poisoned(self) -> bool:
        """True if an output buffer was filled with NaN while its call was in flight."""
        return any(child.ended is not None and child.ended.has_poisoned for child in self._children)

    def returns(self, *, has_failed: bool) -> tuple[Any, ...]:
        """Return the value that the program of each rank returned.

        Raises UsageError for a value that does not pickle. If the run has failed, such a value is None instead, because
        the findings matter more.
        """
        return tuple([self._returned(child, is_needed=not has_failed) for child in self._children])

    def errors(self) -> dict[int, BaseException]:
        """Return the exceptions of ranks, in the order in which they were raised."""
        return {rank: self._error(rank) for rank in self._coordinator.raisers}

    def findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """Return the findings, as of an execution whose ranks are threads."""
        ended = [child.ended for child in self._children if child.ended is not None]
        found = sorted(
            (*self._kernel.run.findings, *divergences), key=lambda finding: finding.code.value.startswith("hazard.")
        )
        left = {each.rank: each.ended.leaving for each in self._children if each.ended and each.ended.leaving}
        return (
            *outcome.raised({**{rank: self._raised(rank) for rank in self._coordinator.raisers}, **left}),
            *led_by(found, {rank: error.line for rank, error in left.items()}),
            *thread_findings(error for each in ended for error in each.thread_errors),
            *self._kernel.run.hazards(),
        )

    def _returned(self, child: Child, *, is_needed: bool) -> Any:
        has_returned = self._kernel.run.ranks[child.rank].main.state is State.RETURNED  # not if it ran too far
        if not has_returned or child.ended is None or not child.ended.value:
            return None
        try:
            value = unpacked(child.ended.value)
        except Exception as error:
            value = UsageError(
                f"the value that rank {child.rank} returned cannot be unpickled here ({error}), expected a value that "
                "pickle supports: return numbers or tensors, or run with isolation='thread'"
            )
        if isinstance(value, UsageError):
            if is_needed:
                raise value
            return None
        return value

    def _raised(self, rank: int) -> outcome.Raised:
        ended = self._children[rank].ended
        if ended is not None and ended.raised is not None:
            return ended.raised
        return outcome.Raised(f"{LOST}: {self._coordinator.lost[rank]}", self._children[rank].exited_at, "", ())

    def _error(self, rank: int) -> BaseException:
        ended = self._children[rank].ended
        if ended is not None and ended.error:
            assert ended.raised is not None
            try:
                error: BaseException = unpacked(ended.error)
            except Exception:  # its class exists only in the rank
                return RuntimeError(ended.raised.line)
            return error
        return RankLostError(f"rank {rank} {self._coordinator.lost[rank]}")


@contextmanager
def _default_sigchld() -> Iterator[None]:
    """Let the system keep the status of processes in the `with` block, even if the caller ignores SIGCHLD."""
    is_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    replaces = is_ignored and threading.current_thread() is threading.main_thread()
    if replaces:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if replaces:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
