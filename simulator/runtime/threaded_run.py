"""Carries out one run whose ranks are threads, collects their exceptions and returns the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ddpsim.simulator.diagnosis.rank_errors import mark_consequences
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.host import CallWatch
from ddpsim.simulator.runtime.limits import ExecutionWatcher
from ddpsim.simulator.runtime.rank_body import RankMain
from ddpsim.simulator.runtime.thread_host import MoveData, ThreadHost
from ddpsim.simulator.runtime.threads import thread_findings
from ddpsim.simulator.verdict import Finding

if TYPE_CHECKING:
    from ddpsim.simulator.runtime.isolation import Isolation


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
            *outcome.findings_of_errors({**errors, **left}),
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
