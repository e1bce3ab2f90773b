"""A declared training with its world size, as a value to shrink; and the size of this value."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.scenarios.training.parallel import ParallelLayout
from ddpsim.scenarios.training.training import (
    CommunicationHook,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    Training,
)
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.shrinking.greedy import Size
from ddpsim.simulator.shrinking.structure import Row, StructureShrinker

PLAINEST_FIRST = (
    "linear",
    "mlp",
    "discriminator",
    "generator",
    "mixed_dtypes",
    "branches",
    "early_exit",
    "embedding",
    "shared",
    "batch_norm",
    "sync_batch_norm",
    "conv",
    "resnet",
    "transformer",
)
"""The networks in order of complexity, the simplest first."""


class DeclaredTraining(NamedTuple):
    """A training, how many ranks train, and its faults."""

    training: Training
    world_size: int
    faults: tuple[Fault, ...] = ()

    @property
    def iterations_by_rank(self) -> tuple[int, ...]:
        """Return the iterations of each rank."""
        return tuple(self.training.iteration_count(rank) for rank in range(self.world_size))


FEATURES = (
    "join",
    "averages_buffers",
    "reduces_loss",
    "optimizer",
    "seed",
    "dtype",
    "wrapper",
    "parallel",
    "mixed_precision",
    "recomputes",
    "clip_norm",
    "engine_options",
)
"""Fields of a training whose values count in its size if they differ from the default."""


def _default_rows(plain: object, *names: str) -> dict[str, Row]:
    return {name: (getattr(plain, name),) for name in names}


STRUCTURE = StructureShrinker(
    {
        DeclaredTraining: {"training": (), "faults": ()},
        Training: {
            **{"networks": (), "iterations": 0, "rows": 1, "exceptions": (), "accumulation": 1},
            "communication_hook": (None, CommunicationHook.ALLREDUCE),
            **_default_rows(Training(), *FEATURES),
        },
        NetworkChoice: {"name": PLAINEST_FIRST, "options": 1},
        IterationRule: {"start": 0, "step": 0, "cycle": (None,)},
        ExceptionalIterations: _default_rows(ExceptionalIterations(), "uses", "action", "iterations", "ranks"),
        JoinOptions: _default_rows(JoinOptions(), *JoinOptions.__struct_fields__),
        OptimizerChoice: _default_rows(OptimizerChoice(), *OptimizerChoice.__struct_fields__),
        ParallelLayout: _default_rows(ParallelLayout(), "schedule", "micro_batches"),
    }
)


def size_of_training(declared: DeclaredTraining) -> Size:
    """Return the size of a declared training without its schedule: numbers by which trainings are compared."""
    training = declared.training
    return Size(
        ranks=declared.world_size,
        steps=sum(declared.iterations_by_rank),
        calls=len(training.networks) + len(declared.faults) + sum(map(_exception_weight, training.exceptions)),
        shapes=STRUCTURE.distance_of_numbers(declared),
        options=STRUCTURE.distance_of_words(declared),
    )


def _exception_weight(exception: ExceptionalIterations) -> int:
    """Return the share of an exception in the size: one, plus one for each rank, iteration and branch that it names."""
    named = (exception.ranks, exception.iterations, exception.uses)
    said = (exception.action, exception.uses)
    return sum(len(each or ()) for each in named) + sum(each is not None for each in said)
