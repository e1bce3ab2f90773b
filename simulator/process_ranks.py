"""The ranks of a run as processes: what is started for them, and what comes of them.

Loaded by the first run that has such ranks: it is a fifth of what there is to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Start
from ddpsim.simulator.debugging.breakpoints import breakpoints
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.rank_processes.launch import Launch, launched
from ddpsim.simulator.rank_processes.outsiders import Outsiders
from ddpsim.simulator.rank_processes.process_run import ProcessRun
from ddpsim.simulator.rank_processes.program import Program
from ddpsim.simulator.rank_processes.terms import Terms
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.run_options import Ran, RunOptions
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.transport.transport import Transport
from ddpsim.simulator.verdict import Verdict, combine
from ddpsim.simulator.virtual_gpus.announcement import Announcement


@contextmanager
def process_ranks(
    program: Callable[..., Any], world_size: int, options: RunOptions, budget: Budget | None
) -> Iterator[ProcessRanks]:
    """Start what the ranks need, and end it afterwards."""
    with closing(Outsiders()) as outsiders:
        launch = None
        if isinstance(program, Program):
            launch = launched(
                program,
                world_size,
                (budget or Budget()).seconds,
                gpus=options.gpus,
                start=options.start or Start(),
                preload=options.preload,
                outsiders=outsiders,
            )
        with nullcontext() if launch is None else closing(launch):
            yield ProcessRanks(program, launch, outsiders)


class ProcessRanks:
    """The ranks of one run."""

    def __init__(self, program: Callable[..., Any], launch: Launch | None, outsiders: Outsiders) -> None:
        self._program = program
        self._launch = launch
        self._outsiders = outsiders

    @property
    def launched(self) -> int | None:
        """How many there are, where the program has started them itself."""
        return None if self._launch is None else len(self._launch.children)

    def run(
        self, kernel: Kernel, mover: Transport, options: RunOptions, director: Director | None, judge: ReplicaJudge
    ) -> Ran:
        """Run them to their ends."""
        launch = self._launch
        terms = self._terms(kernel, options, director)
        execution = ProcessRun(
            terms,
            kernel,
            move_data=mover.move,
            started=None if launch is None else launch.children,
            director=director,
        )
        try:
            execution.run()
        finally:
            terms.announcement.close()
        findings = execution.findings(judge.findings())
        if launch is not None and execution.went_through:
            raised = launch.end_well(kernel.run.budget.seconds)
            if raised is not None and not execution.errors():
                findings = (*outcome.raised({0: raised}), *findings)
        self._outsiders.check()
        has_failed = combine(findings) is not Verdict.PASS
        return Ran(findings, execution.returns(has_failed=has_failed), execution.errors(), execution.has_poisoned)

    def _terms(self, kernel: Kernel, options: RunOptions, director: Director | None) -> Terms:
        program, launch = self._program, self._launch
        return Terms(
            coordinator=os.getpid(),
            world_size=len(kernel.run.ranks),
            program=_run_by_ranks(program, options, launch),
            is_observed=kernel.run.is_observed,
            checks_replicas=options.check is not None,
            is_program=isinstance(program, Program),
            announcement=Announcement(),
            gpus=options.gpus,
            runs_ahead=_may_run_ahead(options, launch),
            is_launched=launch is not None,
            start=options.start or Start(is_alike=True),
            preload=options.preload,
            outsiders=self._outsiders.address,
            poisons=options.poison,
            semantics=options.semantics,
            debugs_rank=None if director is None else director.starts_in,
            breakpoints=breakpoints(),
        )


def _call(program: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    __tracebackhide__ = True  # pytest then begins with the program
    return program(rank, *args)


def _run_by_ranks(program: Callable[..., Any], options: RunOptions, launch: Launch | None) -> Callable[[int], Any]:
    if launch is not None:
        return _sent
    return program if isinstance(program, Program) else partial(_call, program, tuple(options.args))


def _may_run_ahead(options: RunOptions, launch: Launch | None) -> bool:
    """True if ranks may compute beside each other.

    One core is of no use to them. A fault is to strike a rank where it stands. Ranks that a program has started itself
    may have got memory, locks and queues from it that they share.
    """
    has_cores = len(os.sched_getaffinity(0)) > 1
    return has_cores and launch is None and not options.faults and not options.one_at_a_time


def _sent(rank: int) -> None:
    """Stands for what a rank runs that its program has started: the rank knows."""
