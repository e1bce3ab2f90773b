"""One rank of a scenario, started by torchrun; so a run spans machines.

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m scenarios.worker join-baseline

Rank 0's process prints what came of all ranks, and ends with the exit status of `ddpsim run`; the others say nothing,
but for one line where they cannot be started.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from scenarios.cli import output
from scenarios.cli.judgement import conclusion, judge
from scenarios.cli.status import Status
from scenarios.engines import Engine
from scenarios.loader import load
from scenarios.model import Scenario
from scenarios.processes.job import Job
from scenarios.processes.report import RankReport
from scenarios.processes.run import TIMEOUT_SECONDS, check_usable, result_of
from scenarios.processes.supervisor import supervise
from scenarios.runner import PROCESSES, against_reference, check_engine_options
from simulator import UsageError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NUMBERS = ("RANK", "WORLD_SIZE", "MASTER_PORT")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rank that the environment names, and return the exit status of its process."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options.name, Engine.named(options.engine), options.timeout)
    except UsageError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once on each machine: another one may find no fault
            output.note(str(error))
        return Status.USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scenarios.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("name", metavar="NAME", help="what `ddpsim run` takes")
    parser.add_argument("--engine", default="torch", help="torch or ddp")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS")
    return parser


def _run(name: str, engine: Engine, timeout_seconds: float) -> int:
    _check_environment()
    own = load(name)
    scenario = own.with_world_size(int(os.environ["WORLD_SIZE"]))
    check_engine_options(scenario, engine)
    check_usable(scenario)
    reports = supervise(Job.of(scenario, engine, timeout_seconds))
    return _tell(scenario, engine, reports) if reports else Status.AS_EXPECTED


def _check_environment() -> None:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set, expected torchrun to set them: use "
            "`torchrun --nproc-per-node 4 -m scenarios.worker NAME`, or `ddpsim run NAME --transport processes`"
        )
    for name in _NUMBERS:
        if not os.environ[name].isdecimal():
            raise UsageError(f"{name} is {os.environ[name]!r}, expected a whole number from 0: correct it")


def _tell(scenario: Scenario, engine: Engine, reports: Sequence[RankReport]) -> int:
    """Print what came of all ranks."""
    result = against_reference(result_of(scenario, reports), scenario)
    expected = scenario.expected_by(engine)
    by = "" if engine is Engine.TORCH else f"  engine {engine.value}"
    output.show(f"{scenario.name}  world size {result.world_size}{by}  on processes\n\n{result}\n")
    output.show(conclusion(expected, result, PROCESSES))
    return judge(expected, result, PROCESSES)


if __name__ == "__main__":
    sys.exit(main())
