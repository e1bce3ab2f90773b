"""A declared training: what is trained, on what, and what each rank does in each iteration, as frozen values.

`trainer.py` runs it on the ranks of a process group, or `parallel_trainer.py` where it is laid out over a mesh;
`oracle.py` says what must come of it. All draw the same networks and batches from here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import torch
from msgspec import Meta, Struct
from torch import Tensor

from ddpsim.scenarios.training.models import Network, make
from ddpsim.scenarios.training.parallel import ModelWrapper, Parallel

Options = Mapping[str, object]

MOST = 100_000
"""No rank has more iterations, and no batch more rows: it would be a mistake, and take hours."""
LARGEST = 2**63 - 1
"""No whole number is larger: torch would not take it."""
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]


class Action(str, Enum):
    """What a rank does in one iteration."""

    TRAIN = "train"
    """Forward, backward, optimizer step."""
    ACCUMULATE = "accumulate"
    """Forward and backward under `no_sync`; the gradients stay for the next step."""
    SKIP = "skip"
    """Nothing at all."""
    SKIP_BACKWARD = "skip_backward"
    """Forward only, as for a batch whose loss is not finite."""
    SKIP_STEP = "skip_step"
    """Forward and backward, and no optimizer step."""
    EVALUATE = "evaluate"
    """A forward through the wrapper, in evaluation mode and without gradients."""
    EVALUATE_INNER = "evaluate_inner"
    """The same through the inner module."""

    @property
    def has_forward(self) -> bool:
        """True for a forward through the wrapper with gradients."""
        return self not in (Action.SKIP, Action.EVALUATE, Action.EVALUATE_INNER)

    @property
    def has_backward(self) -> bool:
        """True for a forward that a backward follows."""
        return self in (Action.TRAIN, Action.ACCUMULATE, Action.SKIP_STEP)


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """A network by name, with its options; see models.py."""

    name: str = "linear"
    options: Options = field(default_factory=dict)


class TrainingPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a training that stands in a file as it is, a key for each field. What it may hold is checked there."""


class Exceptional(TrainingPart, frozen=True):
    """What some ranks do otherwise in some iterations; the last one that fits counts."""

    ranks: tuple[Whole, ...] | None = None
    """None for all ranks."""
    iterations: tuple[Whole, ...] | None = None
    """From 0; None for all."""
    action: Action | None = None
    uses: tuple[str, ...] | None = None
    """The branches of the networks that the batch goes through; None for all."""

    def fits(self, rank: int, iteration: int) -> bool:
        """True if it is about this rank and iteration."""
        return (self.ranks is None or rank in self.ranks) and (self.iterations is None or iteration in self.iterations)


class Rule(TrainingPart, frozen=True):
    """How many iterations a rank has: `start + step * (rank modulo cycle)`, at least 0."""

    start: Annotated[int, Meta(ge=0, le=MOST)] = 3
    step: Annotated[int, Meta(ge=-MOST, le=MOST)] = 0
    cycle: Annotated[int, Meta(ge=1, le=LARGEST)] | None = None

    def __call__(self, rank: int) -> int:
        """For one rank."""
        return max(0, self.start + self.step * (rank if self.cycle is None else rank % self.cycle))


class JoinTerms(TrainingPart, frozen=True):
    """The arguments of `join`."""

    divide_by_initial_world_size: bool = True
    throw_on_early_termination: bool = False


class OptimizerName(str, Enum):
    """torch's optimizers that can be declared."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class OptimizerChoice(TrainingPart, frozen=True, rename={"is_sharded": "sharded"}):
    """An optimizer; with `is_sharded` inside a ZeroRedundancyOptimizer, each rank stepping a part of the parameters."""

    name: OptimizerName = OptimizerName.SGD
    learning_rate: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.05
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    is_sharded: bool = False


class CommunicationHook(str, Enum):
    """torch's communication hooks that can be declared, by the names of its module default_hooks."""

    ALLREDUCE = "allreduce"
    FP16_COMPRESS = "fp16_compress"
    BF16_COMPRESS = "bf16_compress"


_THREE = Rule()
_PLAIN_SGD = OptimizerChoice()


@dataclass(frozen=True, slots=True)
class Training:
    """A declared training. `iterations` is a number for each rank, or a rule for any world."""

    networks: tuple[NetworkChoice, ...] = (NetworkChoice(),)
    """Each is wrapped on its own, with an optimizer of its own; an iteration trains one after the other."""
    iterations: tuple[int, ...] | Rule = _THREE
    rows: tuple[int, ...] | int = 4
    """Samples in a batch; by rank, or for all."""
    engine_options: Options = field(default_factory=dict)
    """Arguments of DistributedDataParallel."""
    join: JoinTerms | None = None
    optimizer: OptimizerChoice = _PLAIN_SGD
    communication_hook: CommunicationHook | None = None
    averages_buffers: bool = False
    """A buffer hook averages the floating buffers over the ranks after each forward."""
    reduces_loss: bool = False
    """The loop adds up each loss over the ranks, an all_reduce of its own, and makes no step if it is infinite."""
    exceptions: tuple[Exceptional, ...] = ()
    seed: int = 0
    dtype: torch.dtype = torch.float32
    wrapper: ModelWrapper = ModelWrapper.DDP
    parallel: Parallel | None = None
    """None for data parallelism alone, over all ranks."""
    accumulation: int = 1
    """All iterations but every so manieth accumulate, unless exceptions say something else."""
    mixed_precision: torch.dtype | None = None
    """In which parameters are gathered, batches computed and gradients reduced; `dtype` if None."""
    recomputes: bool = False
    """Activation checkpointing: the backward computes each layer anew."""
    clip_norm: float | None = None
    """The largest norm of all gradients together; larger ones are scaled down before the step."""

    @property
    def needs_mesh(self) -> bool:
        """True if it takes more than `trainer.py` has, and `parallel_trainer.py` runs it."""
        return self.wrapper is not ModelWrapper.DDP or self.parallel is not None or self.clip_norm is not None

    def layout(self, world_size: int) -> Parallel:
        """How it lies over the ranks of a world."""
        return self.parallel or Parallel(dp=world_size)

    def count(self, rank: int) -> int:
        """How many iterations a rank has."""
        return self.iterations(rank) if isinstance(self.iterations, Rule) else self.iterations[rank]

    def action(self, rank: int, iteration: int) -> Action:
        """What a rank does in an iteration."""
        actions = [each.action for each in self.exceptions if each.action is not None and each.fits(rank, iteration)]
        if actions:
            return actions[-1]
        return Action.ACCUMULATE if (iteration + 1) % self.accumulation else Action.TRAIN

    def uses(self, rank: int, iteration: int, network: Network) -> tuple[str, ...] | None:
        """The branches of `network` that a rank's batch goes through; None for all."""
        used = [each.uses for each in self.exceptions if each.uses is not None and each.fits(rank, iteration)]
        return tuple(branch for branch in network.branches if branch in used[-1]) if used else None

    def network(self, index: int, *, seed: int | None = None, dtype: torch.dtype | None = None) -> Network:
        """A new network, as rank 0 has it unless another seed is given."""
        choice = self.networks[index]
        made = make(choice.name, choice.options, seed=self.seed if seed is None else seed, dtype=dtype or self.dtype)
        made.recomputes = self.recomputes
        return made

    def batch(self, network: Network, rank: int, iteration: int) -> Tensor:
        """A rank's batch of an iteration, the same for whoever asks."""
        rows = self.rows if isinstance(self.rows, int) else self.rows[rank]
        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 1009 + iteration)
        return network.batch(rows, generator)

    @property
    def fits_every_world(self) -> bool:
        """True if nothing is given rank by rank, so that it makes sense in a world of any size."""
        return isinstance(self.iterations, Rule) and isinstance(self.rows, int) and self.parallel is None
