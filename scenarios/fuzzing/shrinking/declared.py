"""A declared training with its world size as a value to shrink, and its size."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.scenarios.training.parallel import Parallel
from ddpsim.scenarios.training.training import (
    CommunicationHook,
    Exceptional,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    Rule,
    Training,
)
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.shrinking.greedy import Size
from ddpsim.simulator.shrinking.structure import Row, Structure

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
"""The networks, the simplest first."""


class Declared(NamedTuple):
    """A training, how many ranks train, and its faults."""

    training: Training
    world_size: int
    faults: tuple[Fault, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the iterations of each rank."""
        return tuple(self.training.count(rank) for rank in range(self.world_size))


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
"""Fields that have a default value or not."""


def _defaults(plain: object, *names: str) -> dict[str, Row]:
    return {name: (getattr(plain, name),) for name in names}


STRUCTURE = Structure(
    {
        Declared: {"training": (), "faults": ()},
        Training: {
            **{"networks": (), "iterations": 0, "rows": 1, "exceptions": (), "accumulation": 1},
            "communication_hook": (None, CommunicationHook.ALLREDUCE),
            **_defaults(Training(), *FEATURES),
        },
        NetworkChoice: {"name": PLAINEST_FIRST, "options": 1},
        Rule: {"start": 0, "step": 0, "cycle": (None,)},
        Exceptional: _defaults(Exceptional(), "uses", "action", "iterations", "ranks"),
        JoinTerms: _defaults(JoinTerms(), *JoinTerms.__struct_fields__),
        OptimizerChoice: _defaults(OptimizerChoice(), *OptimizerChoice.__struct_fields__),
        Parallel: _defaults(Parallel(), "schedule", "micro_batches"),
    }
)


def size_of(declared: Declared) -> Size:
    """Return the size of a declared training, without its schedule."""
    training = declared.training
    return Size(
        ranks=declared.world_size,
        steps=sum(declared.counts),
        calls=len(training.networks) + len(declared.faults) + sum(map(_exception_weight, training.exceptions)),
        shapes=STRUCTURE.numbers(declared),
        options=STRUCTURE.words(declared),
    )


def _exception_weight(exception: Exceptional) -> int:
    """Count one for the exception, and one for each rank, iteration and branch that it names."""
    named = (exception.ranks, exception.iterations, exception.uses)
    said = (exception.action, exception.uses)
    return sum(len(each or ()) for each in named) + sum(each is not None for each in said)
