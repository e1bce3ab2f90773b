"""Running a declared training on an engine, against numbers worked out once."""

from __future__ import annotations

from ddpsim import Result
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.model import CLEAN, Scenario
from ddpsim.scenarios.training.reference import TrainingReference, reference_by_oracle
from ddpsim.scenarios.training.trainer import run_declared_training
from ddpsim.scenarios.training.training import Training


def run(
    training: Training,
    world_size: int,
    engine: str = "torch",
    *,
    reference: TrainingReference | None = None,
    **how: object,
) -> Result:
    """Train on `engine` and compare with `reference`, by default what the oracle says."""
    expected = reference_by_oracle(training, world_size) if reference is None else reference
    declared = Scenario(
        "declared",
        "a declared training",
        run_declared_training,
        CLEAN,
        world_size=world_size,
        min_world_size=1,
        args=(training,),
        reference=lambda world_size: expected,
    )
    return run_scenario(declared, engine, **how)
