"""The ranks of a run as processes: what is started for them, and what comes of them.

Loaded by the first run that has such ranks: it is a fifth of what there is to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Start
from ddpsim.simulator.debugging.breakpoints import breakpoints
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.launching.guardian import Guardian
from ddpsim.simulator.launching.launch import Launch, launched
from ddpsim.simulator.launching.program_ranks import start_ranks
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes.children import Child, fork_ranks
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.process_run import ProcessRun
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.run_options import RanksOutcome, RunPlan
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.transport.transport import Transport
from ddpsim.simulator.verdict import Verdict, combine
from ddpsim.simulator.virtual_gpus.announcement import Announcement


@contextmanager
def process_ranks(
    program: Callable[..., Any], world_size: int, plan: RunPlan, budget: Budget | None
) -> Iterator[ProcessRanks]:
    """Start what the ranks need, and end it afterwards."""
    with closing(ExternalProcesses()) as external_processes:
        launch = None
        if isinstance(program, Script):
            launch = launched(
                program,
                world_size,
                (budget or Budget()).seconds,
                gpus=plan.gpus,
                start=plan.start or Start(),
                preload=plan.preload,
                external_processes=external_processes,
            )
        with nullcontext() if launch is None else closing(launch):
            yield ProcessRanks(program, launch, external_processes)


class ProcessRanks:
    """The ranks of one run."""

    def __init__(
        self, program: Callable[..., Any], launch: Launch | None, external_processes: ExternalProcesses
    ) -> None:
        self._program = program
        self._launch = launch
        self._external_processes = external_processes

    @property
    def launched(self) -> int | None:
        """How many there are, where the program has started them itself."""
        return None if self._launch is None else len(self._launch.children)

    def run(
        self, kernel: Kernel, mover: Transport, plan: RunPlan, director: Director | None, judge: ReplicaJudge
    ) -> RanksOutcome:
        """Run them to their ends."""
        launch = self._launch
        config = self._config(kernel, plan, director)
        with ExitStack() as over:
            over.callback(config.announcement.close)
            execution = ProcessRun(
                config,
                kernel,
                move_data=mover.move,
                start=_way_to_start(self._program, launch, over),
                director=director,
            )
            execution.run()
        findings = execution.findings(judge.findings())
        if launch is not None and execution.went_through:
            raised = launch.end_well(kernel.run.budget.seconds)
            if raised is not None and not execution.errors():
                findings = (*outcome.raised({0: raised}), *findings)
        self._external_processes.check()
        has_failed = combine(findings) is not Verdict.PASS
        return RanksOutcome(
            findings, execution.returns(has_failed=has_failed), execution.errors(), execution.has_poisoned
        )

    def _config(self, kernel: Kernel, plan: RunPlan, director: Director | None) -> ProcessConfig:
        program, launch = self._program, self._launch
        return ProcessConfig(
            coordinator=os.getpid(),
            world_size=len(kernel.run.ranks),
            program=_run_by_ranks(program, plan, launch),
            is_observed=kernel.run.is_observed,
            checks_replicas=plan.check is not None,
            is_program=isinstance(program, Script),
            announcement=Announcement(),
            gpus=plan.gpus,
            is_speculative=_may_speculate(plan, launch),
            is_launched=launch is not None,
            start=plan.start or Start(is_alike=True),
            preload=plan.preload,
            external_processes=self._external_processes.address,
            poisons=bool(plan.poison),
            semantics=plan.semantics,
            debugs_rank=None if director is None else director.starts_in,
            breakpoints=breakpoints(),
        )


def _call(program: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    __tracebackhide__ = True  # pytest then begins with the program
    return program(rank, *args)


def _run_by_ranks(program: Callable[..., Any], plan: RunPlan, launch: Launch | None) -> Callable[[int], Any]:
    if launch is not None:
        return _sent
    return program if isinstance(program, Script) else partial(_call, program, plan.args)


def _way_to_start(
    program: Callable[..., Any], launch: Launch | None, over: ExitStack
) -> Callable[[ProcessConfig], Sequence[Child]]:
    """What starts the ranks' processes; what it needs is given back with `over`."""
    if launch is not None:
        return launch.begin
    if not isinstance(program, Script):
        return fork_ranks
    guardian = Guardian()  # functions seldom start processes
    over.callback(guardian.end)
    return partial(start_ranks, guardian=guardian)


def _may_speculate(plan: RunPlan, launch: Launch | None) -> bool:
    """True if ranks may compute beside each other.

    One core is of no use to them. A fault is to strike a rank where it stands. Ranks that a program has started itself
    may have got memory, locks and queues from it that they share.
    """
    has_cores = len(os.sched_getaffinity(0)) > 1
    return has_cores and launch is None and not plan.faults and not plan.one_at_a_time


def _sent(rank: int) -> None:
    """Stands for what a rank runs that its program has started: the rank knows."""
