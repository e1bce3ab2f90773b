"""One execution whose ranks are processes: forks them, runs them, and collects their results."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from ddpsim.simulator.ctrl_c import CtrlCGuard, handle_signals
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.diagnosis.rank_errors import LOST, mark_consequences
from ddpsim.simulator.errors import RankLostError, UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import RunEnding, TaskState
from ddpsim.simulator.rank_processes.children import ChildProcess, check_process_support, fork_ranks
from ddpsim.simulator.rank_processes.coordinator import RankCoordinator
from ddpsim.simulator.rank_processes.inbox import MoveData
from ddpsim.simulator.rank_processes.messages import unpickle_value
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
        start: Callable[[ProcessConfig], Sequence[ChildProcess]] = fork_ranks,
        director: RunDirector | None = None,
    ) -> None:
        """`start` starts the processes of the ranks. `director` decides where a run under `ddpsim debug` pauses."""
        self._director = director
        self._config = config
        self._start = start
        self._kernel = kernel
        self._move_data = move_data
        self._children: Sequence[ChildProcess] = ()
        self._coordinator: RankCoordinator

    def run_to_end(self) -> None:
        """Run the ranks to their end. Raises UsageError if the system has no processes left, and any internal error."""
        check_process_support(self._config.world_size, forks_from_here=not self._config.is_program)
        # Ctrl-C must not raise here: the ranks could not be unwound.
        ctrl_c = CtrlCGuard(raises=False)
        # Otherwise the system would not keep the status of processes.
        ignored = [signal.SIGCHLD] if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else []
        with ctrl_c, handle_signals(signal.SIG_DFL, *ignored):
            self._run_ranks(ctrl_c)
        if self._kernel.run.life.failure is not None:
            raise self._kernel.run.life.failure

    def _run_ranks(self, ctrl_c: CtrlCGuard) -> None:
        """Start the processes, run them, and kill those that have not ended."""
        self._children = self._start(self._config)
        move, director = self._move_data, self._director
        self._coordinator = RankCoordinator(
            self._kernel, self._children, self._config, move_data=move, ctrl_c=ctrl_c, director=director
        )
        try:
            self._coordinator.run_to_end()
            self._coordinator.collect_results()
        finally:
            for child in self._children:
                child.kill_process()
            self._coordinator.forward_output()
            for child in self._children:
                child.release_resources()

    @property
    def has_completed(self) -> bool:
        """True if all ranks returned or one raised, so that no rank would wait forever."""
        life = self._kernel.run.life
        return not life.is_interrupted and (bool(self._coordinator.raisers) or life.ending is RunEnding.FINISHED)

    @property
    def has_poisoned(self) -> bool:
        """True if an output buffer was filled with NaN while its call was in flight."""
        return any(child.ended is not None and child.ended.has_poisoned for child in self._children)

    def returned_values(self, *, has_failed: bool) -> tuple[Any, ...]:
        """Return the value that the program of each rank returned.

        Raises UsageError for a value that does not pickle. If the run has failed, such a value is None instead, because
        the findings matter more.
        """
        return tuple([self._returned_value(child, is_needed=not has_failed) for child in self._children])

    def raised_exceptions(self) -> dict[int, BaseException]:
        """Return the exceptions of ranks, in the order in which they were raised."""
        return {rank: self._raised_exception(rank) for rank in self._coordinator.raisers}

    def collect_findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """Return the findings (the errors found), in the same form as when ranks are threads."""
        run = self._kernel.run
        ended = [child.ended for child in self._children if child.ended is not None]
        errors = {rank: self._describe_exception(rank) for rank in self._coordinator.raisers}
        left = {each.rank: each.ended.leaving for each in self._children if each.ended and each.ended.leaving}
        found = sorted((*run.findings, *divergences), key=lambda finding: finding.code.value.startswith("hazard."))
        return (
            *outcome.findings_of_errors(errors, left),
            *mark_consequences(found, {rank: error.line for rank, error in left.items()}),
            *thread_findings(error for each in ended for error in each.thread_errors),
            *run.hazard_findings(),
        )

    def _returned_value(self, child: ChildProcess, *, is_needed: bool) -> Any:
        has_returned = self._kernel.run.ranks[child.rank].main.state is TaskState.RETURNED  # not if it ran too far
        if not has_returned or child.ended is None or not child.ended.value:
            return None
        try:
            value = unpickle_value(child.ended.value)
        except Exception as error:
            value = UsageError(
                f"the value that rank {child.rank} returned cannot be unpickled here ({error}), expected a value that "
                "pickle supports: return numbers or tensors, or run with isolation='thread'"
            )
        if is_needed and isinstance(value, UsageError):
            raise value
        return None if isinstance(value, UsageError) else value

    def _describe_exception(self, rank: int) -> outcome.RaisedError:
        ended = self._children[rank].ended
        if ended is not None and ended.raised is not None:
            return ended.raised
        return outcome.RaisedError(f"{LOST}: {self._coordinator.lost[rank]}", self._children[rank].exited_at, "", ())

    def _raised_exception(self, rank: int) -> BaseException:
        ended = self._children[rank].ended
        if ended is not None and ended.error:
            assert ended.raised is not None
            try:
                error: BaseException = unpickle_value(ended.error)
            except Exception:  # its class exists only in the rank
                return RuntimeError(ended.raised.line)
            return error
        lost = RankLostError(f"rank {rank} {self._coordinator.lost[rank]}")
        lost.exit_code = os.waitstatus_to_exitcode(self._children[rank].status or 0) or 1
        return lost
