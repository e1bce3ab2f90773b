"""Make scenarios from a declared training or from the steps of every rank, together with the expected outcome."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import CLEAN, Expectation, Scenario, finds
from ddpsim.scenarios.ranks.interpreter import rank_function_of, site_of_step
from ddpsim.scenarios.training import oracle, parallel_trainer, trainer
from ddpsim.scenarios.training.reference import reference_by_oracle
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import Program


def scenario_of_training(
    training: Training, world_size: int, *, name: str, engine: Engine = Engine.TORCH, choices: tuple[int, ...] = ()
) -> Scenario:
    """Return a scenario that runs a training, which has to pass. If the oracle (training on one process) supports the
    training, their numbers have to agree."""
    return Scenario(
        name,
        "",
        rank_function_of_training(training),
        CLEAN,
        world_size=world_size,
        min_world_size=1 if training.fits_every_world else world_size,
        max_world_size=None if training.fits_every_world else world_size,
        args=(training,),
        reference=partial(reference_by_oracle, training) if _can_oracle_judge(training, world_size) else None,
        engine=engine,
        choices=choices,
    )


def rank_function_of_training(training: Training) -> Callable[..., Any]:
    """Return the function that trains on each rank."""
    return parallel_trainer.train_on_mesh if training.needs_mesh else trainer.run_declared_training


def scenario_of_program(
    program: Program, *, name: str, engine: Engine = Engine.TORCH, choices: tuple[int, ...] = ()
) -> Scenario:
    """Return a scenario that runs the steps of a program. It expects the findings that the static analysis `check`
    predicts. Raises UsageError if ranks cannot run the steps."""
    return Scenario(
        name,
        "",
        rank_function_of(program),
        expectation_of_program(program),
        world_size=program.world_size,
        min_world_size=program.world_size,
        max_world_size=program.world_size,
        args=(program,),
        engine=engine,
        choices=choices,
    )


def expectation_of_program(program: Program) -> Expectation:
    """Return the outcome that the static analysis `check` predicts for a program: its first finding, or none."""
    found = check_program(program, site_of=site_of_step).findings
    return finds(found[0].code, found[0].ranks) if found else CLEAN


def _can_oracle_judge(training: Training, world_size: int) -> bool:
    try:
        oracle.check_has_defined_result(training, world_size)
    except UsageError:
        return False
    return True


def training_of_scenario(scenario: Scenario) -> Training | None:
    """Return the training that a scenario declares; None if it declares none."""
    return next((each for each in scenario.args if isinstance(each, Training)), None)


def program_of_scenario(scenario: Scenario) -> Program | None:
    """Return the program whose steps a scenario runs; None if it runs something else."""
    return next((each for each in scenario.args if isinstance(each, Program)), None)
