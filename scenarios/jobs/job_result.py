"""Run a scenario on real processes, one per rank, on real gloo and without ddpsim's scheduler."""

from __future__ import annotations

import os
import pickle
import shlex
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ddpsim import Result, Schedule, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.jobs.job_findings import findings_of_reports
from ddpsim.scenarios.jobs.job_launcher import launch_job
from ddpsim.scenarios.jobs.rank_report import RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.trace import Trace

TIMEOUT_SECONDS = 10.0

MOST_RANKS = 64
"""The largest number of ranks. Each rank has two processes and about ten threads. For more ranks, use the simulator or
several machines."""
_TASKS_A_RANK = 16


def run_on_processes(scenario: Scenario, engine: Engine, timeout_seconds: float = TIMEOUT_SECONDS) -> Result:
    """Run a scenario on one process per rank.

    Raises UsageError if the scenario cannot run on processes, or if the processes cannot start.
    """
    check_runs_on_processes(scenario)
    _check_world_size(scenario.world_size)
    reports = launch_job(ScenarioJob.from_scenario(scenario, engine, timeout_seconds), scenario.world_size)
    return result_of_reports(scenario, engine, reports)


def result_of_reports(scenario: Scenario, engine: Engine, reports: Sequence[RankReport]) -> Result:
    """Return the result of a run from the reports of its ranks. Raises UsageError if a rank did not start."""
    _check_started(reports)
    identity = f"{scenario.name} on {len(reports)} ranks"
    raised = sorted((report for report in reports if report.error is not None), key=lambda report: report.seconds)
    return Result(
        world_size=len(reports),
        findings=findings_of_reports(reports, command=_simulation_command(scenario, engine, len(reports))),
        returns=tuple(_unpickle_value(report.value) for report in reports),
        errors={report.rank: _unpickle_exception(report) for report in raised},
        schedule=Schedule((), identity),
        trace=Trace(()),
        program=identity,
    )


def _simulation_command(scenario: Scenario, engine: Engine, world_size: int) -> str:
    by = "" if engine is Engine.TORCH else f" --engine {engine.value}"
    return f"ddpsim run {shlex.quote(scenario.name)} --world-size {world_size}{by}"


def check_runs_on_processes(scenario: Scenario) -> None:
    """Raise UsageError if real processes on gloo cannot run the scenario."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError(
            "transport is 'processes', but this torch has no gloo, expected one built with it: install another build "
            "of torch, or leave the transport out, which simulates"
        )
    if not hasattr(os, "fork"):
        raise UsageError("transport is 'processes', but this system cannot fork, expected Linux or macOS: simulate")
    if why := reason_against_processes(scenario):
        raise UsageError(f"{scenario.name} {why}, expected none: use transport 'memory' or 'gloo'")


def reason_against_processes(scenario: Scenario) -> str | None:
    """Return the reason why real processes cannot run this scenario; None if they can."""
    if scenario.backend_semantics != GLOO.name:
        return f"goes by the rules of {scenario.backend_semantics!r}, but real processes run on real gloo"
    if not scenario.faults:
        return None
    return f"has faults ({scenario.faults[0]}), but faults can only be injected in a simulation"


def _check_world_size(world_size: Any) -> None:
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise UsageError(f"world size is {world_size!r}, expected a whole number from 1: say how many ranks to run")
    most = _most_ranks()
    if most < 1:
        raise UsageError(
            f"this user may start fewer than {_TASKS_A_RANK} processes, expected {_TASKS_A_RANK} or more for each "
            "rank: raise the limit (ulimit -u), or leave the transport out, which simulates"
        )
    if world_size > most:
        raise UsageError(
            f"world size is {world_size}, expected at most {most} as processes of this machine: take fewer ranks, more "
            "machines (torchrun --nnodes), or leave the transport out, which simulates thousands"
        )


def _most_ranks() -> int:
    """Return how many ranks this machine can start: fewer than `MOST_RANKS` if the user's process limit is low."""
    import resource  # absent on systems without fork

    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return MOST_RANKS if limit == resource.RLIM_INFINITY else min(MOST_RANKS, limit // _TASKS_A_RANK)


def _check_started(reports: Sequence[RankReport]) -> None:
    failed = [report for report in reports if not report.has_started]
    told = [report for report in failed if report.error or report.death] or failed
    if not told:
        return
    first = min(told, key=lambda report: report.seconds)
    raise UsageError(
        f"rank {first.rank} did not start ({_start_failure_text(first)}), "
        "expected its process to load the program and to connect: "
        "correct that, and run it again"
    )


def _start_failure_text(report: RankReport) -> str:
    if report.error is not None:
        return report.error.line
    words = f", after {report.last_words[-1]!r}" if report.last_words else ""
    return f"{report.death}{words}" if report.death else report.position.stack if report.position else ""


def _unpickle_value(value: bytes | None) -> Any:
    try:
        return None if value is None else pickle.loads(value)
    except Exception:  # of a class that this process cannot import
        return None


def _unpickle_exception(report: RankReport) -> BaseException:
    assert report.error is not None
    loaded = _unpickle_value(report.error.pickled)
    return loaded if isinstance(loaded, BaseException) else RuntimeError(report.error.line)
