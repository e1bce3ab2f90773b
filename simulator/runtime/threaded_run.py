"""One execution whose ranks are threads: their programs are run, what they raise is caught, and the end is awaited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ddpsim.simulator.diagnosis.leaving_ranks import led_by
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.runtime import limits, outcome
from ddpsim.simulator.runtime.host import CallWatch
from ddpsim.simulator.runtime.rank_body import RankBody
from ddpsim.simulator.runtime.starter import Starter
from ddpsim.simulator.runtime.thread_host import MoveData, ThreadHost
from ddpsim.simulator.runtime.threads import thread_findings
from ddpsim.simulator.verdict import Finding


class Isolation(Protocol):
    """Swaps what a process owns when the baton changes hands; None stands for the process outside the simulation."""

    def install(self) -> None:
        """Take over the process."""

    def switch(self, outgoing: int | None, incoming: int | None) -> None:
        """Put away the outgoing rank's state, and bring out the incoming one's."""

    def uninstall(self) -> None:
        """Leave the process as it was before `install`."""


class ThreadedRun:
    """One execution. The layers above give it what ranks run in: groups, isolation and a transport."""

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
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        """What ranks raised, in the order they did."""
        self.leaving: dict[int, BaseException] = {}
        """What was on its way out of ranks when the run ended."""
        body = RankBody(
            program,
            enter_rank=enter_rank,
            record_error=self.errors.__setitem__,
            record_leaving=self.leaving.__setitem__,
        )
        self.host = ThreadHost(
            kernel,
            len(kernel.run.ranks),
            lambda me: body.run(self.host, me),
            switch=isolation.switch,
            move_data=move_data,
            hazards=hazards,
            enter_thread=enter_thread,
        )
        self._starter = Starter(self.host, kernel, share_core=share_core)
        self._kernel = kernel
        self._isolation = isolation
        self._name_parameters = name_parameters

    def run(self) -> None:
        """Run to the end. An interrupt of the calling thread (Ctrl-C) comes through once all ranks are unwound."""
        host = self.host
        self._isolation.install()
        try:
            limits.run(self._starter, self._kernel.run.budget)
        finally:
            self._isolation.uninstall()
            host.hazards.run_ended()
            for rank in host.ranks:
                if rank.main.ident and rank.main.thread is not None:
                    rank.main.thread.join(timeout=0.2 if rank.main.is_abandoned else None)
            host.threads.join()
        self._raise_failure()

    def findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """What ranks raised, in the order they did, the same error once for all; then the rest, hazards last."""
        errors, left = map(self._told, (self.errors, dict(sorted(self.leaving.items()))))
        found = sorted(
            (*self._kernel.run.findings, *divergences), key=lambda finding: finding.code.value.startswith("hazard.")
        )
        return (
            *outcome.raised({**errors, **left}),
            *led_by(found, {rank: error.line for rank, error in left.items()}),
            *thread_findings(self.host.threads.errors),
            *self._kernel.run.hazards(),
        )

    def _told(self, errors: Mapping[int, BaseException]) -> dict[int, outcome.Raised]:
        poisoned = self.host.hazards.poisoned
        return {
            rank: outcome.told(rank, error, self._name_parameters, poisoned(rank)) for rank, error in errors.items()
        }

    def _raise_failure(self) -> None:
        life = self._kernel.run.life
        if isinstance(life.failure, RecursionError) and life.failed_under is not None:
            self.errors.setdefault(
                life.failed_under, life.failure
            )  # the rank's own recursion left the machinery no room
        elif life.failure is not None:
            raise life.failure
