"""Run a scenario on real processes, one per rank, on real gloo and without ddpsim's scheduler."""

import os
import pickle
import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch.distributed as dist

from ddpsim import Code, Finding, Result, Schedule, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.jobs.job_launcher import launch_job
from ddpsim.scenarios.jobs.rank_report import ErrorReport, RankEnding, RankPosition, RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import shorten_text
from ddpsim.simulator.diagnosis.rank_errors import error_kind, rank_error_finding, ranks_out_of_input
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import LabelledLine, rank_list

TIMEOUT_SECONDS = 10.0

MOST_RANKS = 64
"""The largest number of ranks. Each has two processes and ten threads. For more, simulate or use several machines."""
_TASKS_A_RANK = 16


def run_on_processes(scenario: Scenario, engine: Engine, timeout_seconds: float = TIMEOUT_SECONDS) -> Result:
    """Run a scenario on real gloo, one process per rank. Raises UsageError if the scenario cannot run on processes, or
    if the processes cannot start."""
    check_runs_on_processes(scenario)
    _check_world_size(scenario.world_size)
    reports = launch_job(ScenarioJob.from_scenario(scenario, engine, timeout_seconds), scenario.world_size)
    return result_of_reports(scenario, engine, reports)


def result_of_reports(scenario: Scenario, engine: Engine, reports: Sequence[RankReport]) -> Result:
    """Return the result of a run from the reports of its ranks. Raises UsageError if a rank did not start."""
    _check_all_ranks_started(reports)
    identity = f"{scenario.name} on {len(reports)} ranks"
    by = "" if engine is Engine.TORCH else f" --engine {engine.value}"
    command = f"ddpsim run {shlex.quote(scenario.name)} --world-size {len(reports)}{by}"
    raised = sorted((report for report in reports if report.error is not None), key=lambda report: report.seconds)
    return Result(
        world_size=len(reports),
        findings=findings_of_reports(reports, command=command),
        returns=tuple(_unpickle_value(report.value) for report in reports),
        errors={report.rank: _unpickle_exception(report) for report in raised},
        schedule=Schedule((), identity),
        trace=Trace(()),
        program=identity,
    )


def check_runs_on_processes(scenario: Scenario) -> None:
    """Raise UsageError if real processes on gloo cannot run the scenario."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError(
            "transport is 'processes', but this torch has no gloo, expected one built with it: install another build "
            "of torch, or leave the transport out, which simulates"
        )
    if not hasattr(os, "fork"):
        raise UsageError("transport is 'processes', but this system cannot fork, expected Linux or macOS: simulate")
    if why := reason_processes_cannot_run(scenario):
        raise UsageError(f"{scenario.name} {why}, expected none: use transport 'memory' or 'gloo'")


def reason_processes_cannot_run(scenario: Scenario) -> str | None:
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


def _check_all_ranks_started(reports: Sequence[RankReport]) -> None:
    failed = [report for report in reports if not report.has_started]
    explained = [report for report in failed if report.error or report.death] or failed
    if not explained:
        return
    first = min(explained, key=lambda report: report.seconds)
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


_CONNECTION_LOST_ERRORS = re.compile(
    r"[Cc]onnection (?:closed|reset)|Broken pipe|Socket closed|failed to (?:write|read|recv|send)"
)
"""The errors that gloo raises on the other ranks when the process of a rank has ended."""
_CAUSES = {"signal SIGABRT": Cause.PROCESS_ABORTED, "signal SIGKILL": Cause.PROCESS_KILLED}


def findings_of_reports(reports: Sequence[RankReport], *, command: str) -> tuple[Finding, ...]:
    """Return all findings, causes before consequences. They quote `command`, which simulates the program."""
    died = [report for report in reports if report.ending is RankEnding.DIED]
    raised = sorted((each for each in reports if each.error is not None), key=lambda report: report.seconds)
    lost = [report for report in raised if report.error and _CONNECTION_LOST_ERRORS.search(report.error.line)]
    is_clear = bool(died) or len(lost) < len(raised)
    victims = lost if is_clear else []
    by_death = groupby(sorted(died, key=lambda each: (each.death, each.rank)), key=lambda each: each.death)
    found = [_death_finding(list(alike), victims, command) for _, alike in by_death]
    found += _error_findings(each for each in raised if each not in victims)
    if any(report.ending is RankEnding.HUNG for report in reports):
        found.append(_hang_finding(reports, command))
    if victims and not died:
        found += _error_findings(victims)
    return tuple(found)


def _death_finding(died: Sequence[RankReport], victims: Sequence[RankReport], command: str) -> Finding:
    ranks = tuple(report.rank for report in died)
    process = "process" if len(ranks) == 1 else "processes"
    summary = f"the {process} of {rank_list(ranks)} ended with {died[0].death}"
    lines: list[str | LabelledLine] = [f"ERROR  {Code.RANK_ERROR}", f"  {summary}"]
    for report in died:
        lines += _last_position_lines(report)
    if victims:
        lines.append(f"  {rank_list(report.rank for report in victims)} lost the connection then, and raised")
    lines += _CAUSES.get(died[0].death, Cause.PROCESS_CRASHED).lines(command)
    return Finding(Code.RANK_ERROR, ranks, summary, tuple(lines))


def _last_position_lines(died: RankReport) -> list[str]:
    """Return where the dead rank was in its program, and its last lines on stderr."""
    position = died.position
    where = f" at {position.site} in {position.site.function}" if position and position.site else ""
    lines = [f"  rank {died.rank} died{where}"] if where or died.last_words else []
    lines += [f"    {line}" for line in died.last_words]
    return lines + (_stack_lines(position) if position else [])


def _error_findings(raised: Iterable[RankReport]) -> list[Finding]:
    """Return a finding for each distinct error and source line, in the order in which they occurred."""
    alike: dict[tuple[str, Site | None], dict[int, ErrorReport]] = {}
    for report in raised:
        if report.error is not None:
            alike.setdefault((error_kind(report.error.line), report.error.site), {})[report.rank] = report.error
    lines = {rank: error.line for errors in alike.values() for rank, error in errors.items()}
    return [
        rank_error_finding(
            {rank: error.line for rank, error in errors.items()},
            site,
            next(iter(errors.values())).traceback,
            {rank: error.unused for rank, error in errors.items() if error.unused},
            ranks_out_of_input(lines),
        )
        for (_, site), errors in alike.items()
    ]


def _hang_finding(reports: Sequence[RankReport], command: str) -> Finding:
    positions = {each.rank: each.position for each in reports if each.ending is RankEnding.HUNG and each.position}
    stuck = tuple(rank for rank, each in positions.items() if each.is_idle) or tuple(positions)
    idle = [positions[rank].idle_seconds for rank in stuck]
    seconds = max((each for each in idle if each < _IDLE_SECONDS_OF_SILENT_RANK), default=0.0)
    summary = f"{rank_list(stuck)} made no progress" + (f" for {seconds:.1f} s" if seconds else "")
    lines: list[str | LabelledLine] = [f"STUCK  {Code.STUCK}", f"  {summary}"]
    for report in reports:
        lines += _rank_lines(report)
    lines += Cause.PROCESSES_HANG.lines(fact=command)
    sites = tuple(each.site for each in positions.values() if each.site is not None)
    return Finding(Code.STUCK, stuck, summary, tuple(lines), tuple(dict.fromkeys(sites)))


_IDLE_SECONDS_OF_SILENT_RANK = 1e9
"""The seconds without progress assumed for a rank that does not answer: more than those of any other rank."""


def _rank_lines(report: RankReport) -> list[str]:
    """Return lines that say where a rank is, with its line in the user's program first."""
    position = report.position
    if report.ending is not RankEnding.HUNG or position is None:
        return [f"  rank {report.rank}  {_rank_ending_text(report)}"]
    if position.idle_seconds > _IDLE_SECONDS_OF_SILENT_RANK:
        return [f"  rank {report.rank}  {position.stack}"]
    site = position.site
    where = "outside the program's lines" if site is None else f"at {site} in {site.function}"
    head = f"  rank {report.rank}  {where}, for {position.idle_seconds:.1f} s"
    return [head, *_call_lines(position), *_stack_lines(position)]


def _rank_ending_text(report: RankReport) -> str:
    if report.ending is RankEnding.DIED:
        return f"died: {report.death}"
    return f"raised {shorten_text(report.error.line, 90)}" if report.error else "returned"


def _call_lines(position: RankPosition) -> list[str]:
    if not position.calls:
        return ["    last calls  none recorded (messages between two ranks are not)"]
    first, *others = position.calls
    return [f"    last calls  {first}", *(f"                {call}" for call in others)]


def _stack_lines(position: RankPosition) -> list[str]:
    lines = [f"    {line}" for line in position.stack.rstrip().splitlines()]
    return ["    stack", *lines] if lines else []
