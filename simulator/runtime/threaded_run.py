"""One execution whose ranks are threads: their programs are run, what they raise is caught, and the end is awaited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.requests import Raised, RankError, Returned
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.runtime import limits, outcome
from ddpsim.simulator.runtime.call_sites import site_of_error
from ddpsim.simulator.runtime.garbage import fewer_collections
from ddpsim.simulator.runtime.host import CallWatch
from ddpsim.simulator.runtime.rank_thread import RankReturned, RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import MoveData, ThreadHost
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
        self.host = ThreadHost(
            kernel,
            self._run_rank,
            switch=isolation.switch,
            move_data=move_data,
            hazards=hazards,
            enter_thread=enter_thread,
            share_core=share_core,
        )
        self.errors: dict[int, BaseException] = {}
        """What ranks raised, in the order they did."""
        self._kernel = kernel
        self._program = program
        self._isolation = isolation
        self._enter_rank = enter_rank
        self._name_parameters = name_parameters

    def run(self) -> None:
        """Run to the end. An interrupt of the calling thread (Ctrl-C) comes through once all ranks are unwound."""
        host = self.host
        self._isolation.install()
        try:
            with fewer_collections(len(host.ranks)):
                limits.run(host, self._kernel.run.budget)
        finally:
            self._isolation.uninstall()
            for rank in host.ranks:
                if rank.main.ident and rank.main.thread is not None:
                    rank.main.thread.join(timeout=0.2 if rank.main.is_abandoned else None)
            host.threads.join()
        self._raise_failure()

    def findings(self, divergences: Sequence[Finding] = ()) -> tuple[Finding, ...]:
        """What ranks raised, in the order they did, the same error once for all; then the rest, hazards last."""
        found = sorted(
            (*self._kernel.run.findings, *divergences), key=lambda finding: finding.code.value.startswith("hazard.")
        )
        return (
            *outcome.raised(self.errors, self._name_parameters),
            *found,
            *self.host.threads.findings(),
            *self.host.hazards.findings(),
        )

    def _raise_failure(self) -> None:
        life = self._kernel.run.life
        if isinstance(life.failure, RecursionError) and life.failed_under is not None:
            self.errors.setdefault(
                life.failed_under, life.failure
            )  # the rank's own recursion left the machinery no room
        elif life.failure is not None:
            raise life.failure

    # --- on the thread of a rank --------------------------------------------------------------------------------------

    def _run_rank(self, me: RankThread) -> None:
        how = Change.UNWIND
        try:
            how = self._run_program(me)
            self._end_rank(me, how)
        except RankUnwound:  # of an interrupt that came as the program ended: the baton is still here
            self._end_rank(me, how)

    def _end_rank(self, me: RankThread, how: Change) -> None:
        host = self.host
        try:
            if how is Change.RETURN and not host.is_stopping:
                host.ask(Returned())
                host.hazards.rank_ended(me.rank)
        except Exception as error:  # a bug of ours must not leave the others asleep
            host.break_off_by_bug(error)
        finally:
            host.finish(me, how)

    def _run_program(self, me: RankThread) -> Change:
        __tracebackhide__ = True  # pytest then begins with the program
        host, how = self.host, Change.UNWIND
        try:
            me.baton.acquire()  # inside: the end of a run may interrupt whoever has just got it
            if not host.is_stopping:
                with self._enter_rank(me.rank):
                    value = self._program(me.rank)
                    host.threads.outlast(me)
                # Whatever a program does on its way out of a finished execution is a consequence, not a finding.
                if not host.is_stopping:
                    me.of.value, how = value, Change.RETURN
        except RankUnwound:
            pass
        except BaseException as error:
            error = me.fault or error  # C++ may have wrapped what a fault raised
            if isinstance(error, RankReturned):
                how = Change.RETURN
            elif not host.is_stopping:
                how = Change.RAISE
                self._record_error(me, error)
            self._outlast_threads(me)
        return how

    def _outlast_threads(self, me: RankThread) -> None:
        """Wait for the threads of a rank whose program has not come to its end."""
        try:
            self.host.threads.outlast(me)
        except RankUnwound:
            pass
        except Exception as error:  # a bug of ours, as above
            self.host.break_off_by_bug(error)

    def _record_error(self, me: RankThread, error: BaseException) -> None:
        self.errors[me.rank] = error
        told = RankError(type(error).__name__, outcome.one_line(error), site_of_error(error))
        self.host.ask(Raised(told))
