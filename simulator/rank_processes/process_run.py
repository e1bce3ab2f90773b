"""One execution whose ranks are processes: forks them, runs them, and collects their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.diagnosis.rank_errors import LOST, led_by
from ddpsim.simulator.errors import RankLostError, UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import Ending, State
from ddpsim.simulator.rank_processes.children import Child, check_system, fork_ranks
from ddpsim.simulator.rank_processes.coordinator import Coordinator
from ddpsim.simulator.rank_processes.posted_calls import MoveData
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.signals import ends_told
from ddpsim.simulator.rank_processes.values import unpacked
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.threads import thread_findings
from ddpsim.simulator.verdict import Finding


class ProcessRun:
    """One execution."""

    def __init__(
        self,
        config: ProcessConfig,
        kernel: Kernel,
        *,
        move_data: MoveData,
        start: Callable[[ProcessConfig], Sequence[Child]] = fork_ranks,
        director: Director | None = None,
    ) -> None:
        """`start` returns the processes of the ranks; `simulator/launching` has other ways than to fork them from here.

        `director` is that of a run that is debugged from its beginning.
        """
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
        # Ctrl-C raises nothing in here: wherever it would be, the ranks could not be unwound.
        ctrl_c = CtrlC(raises=False)
        with ctrl_c, ends_told():
            self._run(ctrl_c)
        ctrl_c.check()
        if self._kernel.run.life.failure is not None:
            raise self._kernel.run.life.failure

    def _run(self, ctrl_c: CtrlC) -> None:
        self._children = self._start(self._config)
        self._coordinator = Coordinator(
            self._kernel,
            self._children,
            move_data=self._move_data,
            ctrl_c=ctrl_c,
            is_speculative=self._config.is_speculative,
            are_programs=self._config.is_program,
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
        """True if each rank returned or one raised: then no rank would wait forever."""
        return bool(self._coordinator.raisers) or self._kernel.run.life.ending is Ending.FINISHED

    @property
    def has_poisoned(self) -> bool:
        """True if tensors of some call held what shows while it was in flight."""
        return any(child.ended is not None and child.ended.has_poisoned for child in self._children)

    def returns(self, *, has_failed: bool) -> tuple[Any, ...]:
        """What the program of each rank returned.

        Raises UsageError for what could not travel, unless the run has failed: then the findings matter more, and None
        stands for it.
        """
        return tuple([self._returned(child, is_needed=not has_failed) for child in self._children])

    def errors(self) -> dict[int, BaseException]:
        """What ranks raised, in the order in which they did."""
        return {rank: self._error(rank) for rank in self._coordinator.raisers}

    def findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """As of an execution whose ranks are threads."""
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

    # --- inside -------------------------------------------------------------------------------------------------------

    def _has_returned(self, child: Child) -> bool:
        """One that ran ahead and was called back has not, whatever it says."""
        return self._kernel.run.ranks[child.rank].main.state is State.RETURNED

    def _returned(self, child: Child, *, is_needed: bool) -> Any:
        return _returned(child, is_needed=is_needed) if self._has_returned(child) else None

    def _raised(self, rank: int) -> outcome.Raised:
        ended = self._children[rank].ended
        if ended is not None and ended.raised is not None:
            return ended.raised
        return outcome.Raised(f"{LOST}: {self._coordinator.lost[rank]}", self._children[rank].exited_at, "", ())

    def _error(self, rank: int) -> BaseException:
        ended = self._children[rank].ended
        if ended is not None and ended.error:
            assert ended.raised is not None
            return _error_in(ended.error, ended.raised.line)
        return RankLostError(f"rank {rank} {self._coordinator.lost[rank]}")


def _error_in(data: bytes, line: str) -> BaseException:
    try:
        error: BaseException = unpacked(data)
    except Exception:  # its class was made in the rank
        return RuntimeError(line)
    return error


def _returned(child: Child, *, is_needed: bool) -> Any:
    if child.ended is None or not child.ended.value:
        return None
    try:
        value = unpacked(child.ended.value)
    except Exception as error:
        value = UsageError(
            f"what rank {child.rank} returned cannot be told here ({error}), expected what pickle takes: "
            "return numbers or tensors, or run with isolation='thread'"
        )
    if not isinstance(value, UsageError):
        return value
    if is_needed:
        raise value
    return None
