"""Runs ranks as processes: starts the helpers they need, runs them, and collects their results.

Only runs with such ranks import this module, because it makes a fifth of all imports.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import RankSeeds
from ddpsim.simulator.debugging.breakpoints import current_breakpoints
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.diagnosis.rank_errors import launcher_error_finding
from ddpsim.simulator.faults import Strike
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.launching.launch import LauncherRun, start_own_ranks
from ddpsim.simulator.launching.program_ranks import Guardian, start_ranks
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes.children import ChildProcess, fork_ranks
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses
from ddpsim.simulator.rank_processes.inbox import MoveData
from ddpsim.simulator.rank_processes.private_disks import Disks
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.process_run import ProcessRun
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.run_options import RanksOutcome, RunPlan
from ddpsim.simulator.verdict import Verdict, worst_verdict_of_findings
from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement
from ddpsim.simulator.virtual_gpus.building import build_device


@contextmanager
def start_process_ranks(
    program: Callable[..., Any],
    world_size: int,
    plan: RunPlan,
    budget: Budget | None,
    disks: tuple[Disks, ...] = (),
    restarts: int = 0,
) -> "Iterator[ProcessRanks]":
    """Start what the ranks need, and a program that starts its ranks itself; end them at the end of the block."""
    with closing(ExternalProcesses()) as external_processes, closing(FirstUseAnnouncement()) as announcement:
        is_program = isinstance(program, Script)
        if plan.gpus is not None:
            build_device(announcement.announce_build)  # here, as the ranks begin at the same time
        config = ProcessConfig(
            coordinator=os.getpid(),
            world_size=world_size,
            program=program if is_program else partial(_call_with_rank, program, plan.args),
            is_program=is_program,
            announcement=announcement,
            checks_replicas=plan.check is not None,
            gpus=plan.gpus,
            makes_groups=plan.default_group and not is_program,
            external_processes=external_processes.address,
            start=plan.start or RankSeeds(is_alike=True),
            preload=plan.preload,
            poisons=bool(plan.poison),
            semantics=plan.semantics,
            follows_paths=plan.follows_paths,
            recording=plan.recording,
            has_equal_clocks=plan.has_equal_clocks,
            began=int(time()),
            diary=plan.diary,
            strikes=() if restarts else tuple(each for each in plan.faults if isinstance(each, Strike)),
            restarts=restarts,
            disks=disks,
        )
        launch = start_own_ranks(config, (budget or Budget()).seconds, external_processes)
        with nullcontext() if launch is None else closing(launch):
            yield ProcessRanks(config, launch, external_processes)


@dataclass(frozen=True, slots=True)
class ProcessRanks:
    """The ranks of one run, as processes."""

    _config: ProcessConfig
    _launch: LauncherRun | None
    _external_processes: ExternalProcesses

    @property
    def own_rank_count(self) -> int | None:
        """The number of ranks that the program has started itself; None if the program starts no ranks."""
        return None if self._launch is None else len(self._launch.children)

    def run_ranks(
        self, kernel: Kernel, move_data: MoveData, plan: RunPlan, director: RunDirector | None, judge: ReplicaJudge
    ) -> RanksOutcome:
        """Run the ranks until they end, and collect their results."""
        launch = self._launch
        config = self._config._replace(
            world_size=len(kernel.run.ranks),
            is_observed=kernel.run.is_observed,
            is_speculative=_may_speculate(plan, launch),
            is_launched=launch is not None,
            debugs_rank=None if director is None else director.rank_of_start_goal,
            breakpoints=current_breakpoints(),
        )
        with ExitStack() as over:
            start = self._rank_starter(over)
            execution = ProcessRun(config, kernel, move_data=move_data, start=start, director=director)
            execution.run_to_end()
        findings = execution.collect_findings(judge.findings())
        if launch is not None and execution.has_completed:
            raised = launch.finish_program(kernel.run.budget.seconds)
            if raised is not None and not execution.raised_exceptions():
                findings = (launcher_error_finding(raised.line, raised.site, raised.traceback), *findings)
        self._external_processes.raise_if_reported()
        returns = execution.returned_values(has_failed=worst_verdict_of_findings(findings) is not Verdict.PASS)
        return RanksOutcome(findings, returns, execution.raised_exceptions(), execution.has_poisoned)

    def _rank_starter(self, over: ExitStack) -> Callable[[ProcessConfig], Sequence[ChildProcess]]:
        """Return the function that starts the processes of ranks; closing `over` kills what these leave behind."""
        if self._launch is not None:
            return self._launch.configure_ranks
        if not self._config.is_program:
            return fork_ranks
        guardian = Guardian()  # functions seldom start processes
        over.callback(guardian.kill_groups)
        return partial(start_ranks, guardian=guardian)


def _call_with_rank(program: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    __tracebackhide__ = True  # pytest then begins with the program
    return program(rank, *args)


def _may_speculate(plan: RunPlan, launch: LauncherRun | None) -> bool:
    """Return whether ranks may compute at the same time. On a single core this gains nothing.

    With a fault they may not, because the fault must strike a rank at an exact place. Ranks that a program has started
    itself may not, because they may share memory, locks and queues.
    """
    return len(os.sched_getaffinity(0)) > 1 and launch is None and not plan.faults and not plan.one_at_a_time
