"""A declared training in its world, as a value to make simpler, and how large that is."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.scenarios.training.parallel import Parallel, Wrapper
from ddpsim.scenarios.training.training import CommunicationHook, Exceptional, JoinTerms, NetworkChoice, Rule, Training
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.shrinking.size import Size

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
"""The networks, in the order in which one is easier to look through than the next."""

_NETWORK = 1000
_OPTION = 100
"""How much a plainer network, and an option less, weigh against the numbers in options and the rows of a batch."""


class Declared(NamedTuple):
    """A training, how many ranks train, and what strikes them."""

    training: Training
    world_size: int
    faults: tuple[Fault, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The iterations of each rank."""
        return tuple(self.training.count(rank) for rank in range(self.world_size))


def size_of(declared: Declared) -> Size:
    """The size of a declared training; its schedule is none of it."""
    training = declared.training
    exceptions = sum(map(_exception_weight, training.exceptions))
    return Size(
        ranks=declared.world_size,
        steps=sum(declared.counts),
        calls=len(training.networks) + len(declared.faults) + exceptions + _features(training),
        shapes=_rows(declared) + sum(map(_network_weight, training.networks)),
        options=_options(training),
    )


def _exception_weight(exception: Exceptional) -> int:
    """One for what it says, and for each of the ranks, iterations and branches that it names."""
    named = (exception.ranks, exception.iterations, exception.uses)
    said = (exception.action, exception.uses)
    return sum(len(each or ()) for each in named) + sum(each is not None for each in said)


def _features(training: Training) -> int:
    """What else communicates, or changes what is communicated."""
    has = (
        training.join is not None,
        training.communication_hook is not None,
        training.averages_buffers,
        training.reduces_loss,
        training.optimizer.is_sharded,
        training.wrapper is not Wrapper.DDP,
        training.parallel is not None,
        training.accumulation > 1,
        training.mixed_precision is not None,
        training.recomputes,
        training.clip_norm is not None,
    )
    return sum(has)


def _rows(declared: Declared) -> int:
    rows = declared.training.rows
    return rows * declared.world_size if isinstance(rows, int) else sum(rows) + 1


def _network_weight(choice: NetworkChoice) -> int:
    numbers = sum(map(_number, choice.options.values()))
    return PLAINEST_FIRST.index(choice.name) * _NETWORK + len(choice.options) * _OPTION + numbers


def _number(value: object) -> int:
    """How large an option is."""
    if isinstance(value, tuple):
        return sum(map(_number, value)) + len(value)
    return value if isinstance(value, int) else 1


def _options(training: Training) -> int:
    """How many words are said that need not be."""
    plain = Training()
    said = (
        isinstance(training.iterations, tuple),
        isinstance(training.iterations, Rule) and training.iterations.step != 0,
        isinstance(training.iterations, Rule) and training.iterations.cycle is not None,
        training.join is not None and training.join != JoinTerms(),
        training.communication_hook not in (None, CommunicationHook.ALLREDUCE),
        training.optimizer.name is not plain.optimizer.name,
        training.optimizer.learning_rate != plain.optimizer.learning_rate,
        training.optimizer.momentum != plain.optimizer.momentum,
        training.dtype != plain.dtype,
        training.seed != plain.seed,
        training.accumulation > 2,
        training.parallel is not None and training.parallel.schedule is not Parallel().schedule,
        training.parallel is not None and training.parallel.micro_batches is not None,
    )
    return sum(said) + len(training.engine_options)
