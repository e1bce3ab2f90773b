"""Scenarios of values: a declared training, or the steps of every rank; each with what is to be expected of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import CLEAN, Expectation, Scenario, finds
from ddpsim.scenarios.ranks.interpreter import runner_of, site_of
from ddpsim.scenarios.training import oracle, parallel_trainer, trainer
from ddpsim.scenarios.training.reference import by_oracle
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.programs.check import check
from ddpsim.simulator.programs.program import Program


def of_training(
    training: Training, world_size: int, *, name: str, engine: Engine = Engine.TORCH, choices: tuple[int, ...] = ()
) -> Scenario:
    """A scenario without a finding, which is to give what the oracle says, where that has something to say."""
    return Scenario(
        name,
        "",
        program_of_training(training),
        CLEAN,
        world_size=world_size,
        min_world_size=1 if training.fits_every_world else world_size,
        max_world_size=None if training.fits_every_world else world_size,
        args=(training,),
        reference=partial(by_oracle, training) if _has_meaning(training, world_size) else None,
        engine=engine,
        choices=choices,
    )


def program_of_training(training: Training) -> Callable[..., Any]:
    """What each rank runs."""
    return parallel_trainer.train if training.needs_mesh else trainer.train


def of_program(
    program: Program, *, name: str, engine: Engine = Engine.TORCH, choices: tuple[int, ...] = ()
) -> Scenario:
    """A scenario that is to come to what `check` finds in the program. Raises UsageError if ranks could not run it."""
    return Scenario(
        name,
        "",
        runner_of(program),
        expectation_of(program),
        world_size=program.world_size,
        min_world_size=program.world_size,
        max_world_size=program.world_size,
        args=(program,),
        engine=engine,
        choices=choices,
    )


def expectation_of(program: Program) -> Expectation:
    """What a program should come to, where no schedule is given: the finding that leads, or none."""
    found = check(program, site_of=site_of).findings
    return finds(found[0].code, found[0].ranks) if found else CLEAN


def _has_meaning(training: Training, world_size: int) -> bool:
    try:
        oracle.check_has_meaning(training, world_size)
    except UsageError:
        return False
    return True


def training_in(scenario: Scenario) -> Training | None:
    """The training that a scenario declares; None if it is no declared one."""
    return next((each for each in scenario.args if isinstance(each, Training)), None)


def program_in(scenario: Scenario) -> Program | None:
    """The program whose steps a scenario runs; None if it runs something else."""
    return next((each for each in scenario.args if isinstance(each, Program)), None)
