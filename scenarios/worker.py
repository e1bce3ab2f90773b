"""Run one rank of a scenario in a process that torchrun started, so that a run can span machines.

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m ddpsim.scenarios.worker join-baseline

Rank 0's process prints the result of all ranks; the others print nothing, except one line if they cannot start. Every
process ends with the exit status of `ddpsim run`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from ddpsim import UsageError
from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.judgement import judge_result
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.jobs.job_result import TIMEOUT_SECONDS, check_runs_on_processes, result_of_reports
from ddpsim.scenarios.jobs.rank_report import RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob, use_own_compiler_cache
from ddpsim.scenarios.jobs.supervisor import supervise_rank_to_status
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import PROCESSES, check_engine_options, compare_with_reference

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_PORT = 65535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rank that torchrun's environment variables name, and return the exit status of its process."""
    options = _parser().parse_args(arguments)
    try:
        with use_own_compiler_cache():
            return _run_rank(options.name, Engine.parse_name(options.engine), options.timeout)
    except UsageError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once per machine, because another one may start
            output.print_note(str(error))
        return ExitStatus.USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddpsim.scenarios.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("name", metavar="NAME", help="the scenario, as for `ddpsim run`")
    parser.add_argument("--engine", default="torch", help="torch or ddp")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS")
    return parser


def _run_rank(name: str, engine: Engine, timeout_seconds: float) -> int:
    _check_environment()
    scenario = load(name).with_world_size(int(os.environ["WORLD_SIZE"]))
    check_engine_options(scenario, engine)
    check_runs_on_processes(scenario)
    job = ScenarioJob.from_scenario(scenario, engine, timeout_seconds)
    return supervise_rank_to_status(job, lambda reports: _show_result(scenario, engine, reports))


def _check_environment() -> None:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"environment lacks {', '.join(missing)}, expected torchrun to set them: use "
            "`torchrun --nproc-per-node 4 -m ddpsim.scenarios.worker NAME`, or `ddpsim run NAME --transport processes`"
        )
    _read_number("MASTER_PORT", 1, _MOST_PORT)
    world_size = _read_number("WORLD_SIZE", 1, None)
    _read_number("RANK", 0, world_size - 1)


def _read_number(name: str, least: int, most: int | None) -> int:
    """Return the number in an environment variable. Raises UsageError if it is no number in the given range."""
    text = os.environ[name]
    if text.isdecimal() and least <= int(text) and (most is None or int(text) <= most):
        return int(text)
    number = f"from {least}" if most is None else f"from {least} to {most}"
    raise UsageError(f"{name} is {text!r}, expected a whole number {number}: correct it, or start by torchrun")


def _show_result(scenario: Scenario, engine: Engine, reports: Sequence[RankReport]) -> int:
    """Print the result of all ranks, or the reason why they did not start, and return the exit status."""
    try:
        result = compare_with_reference(result_of_reports(scenario, engine, reports), scenario)
    except UsageError as error:
        output.print_note(str(error))
        return ExitStatus.USAGE_ERROR
    status, line = judge_result(scenario.expected_by(engine), result, PROCESSES)
    by = "" if engine is Engine.TORCH else f"  engine {engine.value}"
    output.print_text(f"{scenario.name}  world size {result.world_size}{by}  on processes\n\n{result}\n")
    output.print_text(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
