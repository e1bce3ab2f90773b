"""A declared training as frozen values: its networks, its batches, and the action of each rank in each iteration.

`trainer.py` runs the training on the ranks of a process group; with a mesh, `parallel_trainer.py` does. `oracle.py`
computes the expected result. All three get the same networks and batches from this module.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import torch
from msgspec import Meta, Struct
from torch import Tensor

from ddpsim.scenarios.training.models import Network, make_network
from ddpsim.scenarios.training.parallel import ModelWrapper, ParallelLayout

Options = Mapping[str, object]

MOST = 100_000
"""The largest number of iterations of a rank, and of rows in a batch. Larger trainings would take hours."""
LARGEST = 2**63 - 1
"""The largest whole number that torch accepts."""
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]


class Action(str, Enum):
    """The action of a rank in one iteration."""

    TRAIN = "train"
    """Forward, backward, optimizer step."""
    ACCUMULATE = "accumulate"
    """Forward and backward under `no_sync`; the gradients stay for the next step."""
    SKIP = "skip"
    """Do nothing in this iteration."""
    SKIP_BACKWARD = "skip_backward"
    """Forward only, as after a batch whose loss is not finite."""
    SKIP_STEP = "skip_step"
    """Forward and backward, but no optimizer step."""
    EVALUATE = "evaluate"
    """A forward through the wrapper, in evaluation mode and without gradients."""
    EVALUATE_INNER = "evaluate_inner"
    """A forward through the inner module, in evaluation mode and without gradients."""

    @property
    def has_forward(self) -> bool:
        """Return True for a forward through the wrapper with gradients."""
        return self not in (Action.SKIP, Action.EVALUATE, Action.EVALUATE_INNER)

    @property
    def has_backward(self) -> bool:
        """Return True for a forward with a following backward."""
        return self in (Action.TRAIN, Action.ACCUMULATE, Action.SKIP_STEP)


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """A network by name, with its options; see models/catalog.py."""

    name: str = "linear"
    options: Options = field(default_factory=dict)


class TrainingPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a training. In a TOML file it is a table with a key for each field."""


class ExceptionalIterations(TrainingPart, frozen=True):
    """A different action of some ranks in some iterations; of several for a rank and iteration, the last counts."""

    ranks: tuple[Whole, ...] | None = None
    """The ranks that the exception applies to; None for all."""
    iterations: tuple[Whole, ...] | None = None
    """The iterations that the exception applies to, from 0; None for all."""
    action: Action | None = None
    uses: tuple[str, ...] | None = None
    """The branches of the networks that the batch uses; None for all."""

    def applies_to(self, rank: int, iteration: int) -> bool:
        """Return True if the exception applies to this rank and iteration."""
        return (self.ranks is None or rank in self.ranks) and (self.iterations is None or iteration in self.iterations)


class IterationRule(TrainingPart, frozen=True):
    """The number of iterations of each rank: `start + step * (rank modulo cycle)`, at least 0."""

    start: Annotated[int, Meta(ge=0, le=MOST)] = 3
    step: Annotated[int, Meta(ge=-MOST, le=MOST)] = 0
    cycle: Annotated[int, Meta(ge=1, le=LARGEST)] | None = None

    def __call__(self, rank: int) -> int:
        """Return the number of iterations of a rank."""
        return max(0, self.start + self.step * (rank if self.cycle is None else rank % self.cycle))


class JoinOptions(TrainingPart, frozen=True):
    """The arguments of the context `join()`."""

    divide_by_initial_world_size: bool = True
    throw_on_early_termination: bool = False


class OptimizerName(str, Enum):
    """The optimizers of torch that a training can declare."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class OptimizerChoice(TrainingPart, frozen=True, rename={"is_sharded": "sharded"}):
    """The optimizer; `is_sharded`: a ZeroRedundancyOptimizer, in which each rank updates a part of the parameters."""

    name: OptimizerName = OptimizerName.SGD
    learning_rate: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.05
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    is_sharded: bool = False


class CommunicationHook(str, Enum):
    """torch's communication hooks that can be declared, by their names in its module default_hooks."""

    ALLREDUCE = "allreduce"
    FP16_COMPRESS = "fp16_compress"
    BF16_COMPRESS = "bf16_compress"


_THREE = IterationRule()
_PLAIN_SGD = OptimizerChoice()


@dataclass(frozen=True, slots=True)
class Training:
    """A declared training; `iterations` is a number for each rank, or a rule for any world size."""

    networks: tuple[NetworkChoice, ...] = (NetworkChoice(),)
    """The networks; each has its own DDP object and optimizer, and an iteration trains one after the other."""
    iterations: tuple[int, ...] | IterationRule = _THREE
    rows: tuple[int, ...] | int = 4
    """The number of samples in a batch, by rank or for all."""
    engine_options: Options = field(default_factory=dict)
    """The arguments of DistributedDataParallel."""
    join: JoinOptions | None = None
    optimizer: OptimizerChoice = _PLAIN_SGD
    communication_hook: CommunicationHook | None = None
    averages_buffers: bool = False
    """True if a buffer hook averages the floating buffers over the ranks after each forward."""
    reduces_loss: bool = False
    """True if the loop sums each loss over the ranks by an all_reduce, and skips the step if the sum is infinite."""
    exceptions: tuple[ExceptionalIterations, ...] = ()
    seed: int = 0
    dtype: torch.dtype = torch.float32
    wrapper: ModelWrapper = ModelWrapper.DDP
    parallel: ParallelLayout | None = None
    """The mesh of the ranks; None for data parallelism over all ranks."""
    accumulation: int = 1
    """Every N-th iteration makes an optimizer step, and others accumulate gradients, unless exceptions differ."""
    mixed_precision: torch.dtype | None = None
    """The dtype in which parameters are gathered, batches computed and gradients reduced; `dtype` if None."""
    recomputes: bool = False
    """True for activation checkpointing: the backward recomputes each layer."""
    clip_norm: float | None = None
    """The largest norm of all gradients together; larger gradients are scaled down before the step."""

    @property
    def needs_mesh(self) -> bool:
        """Return True for a mesh or options that `parallel_trainer.py` supports and `trainer.py` does not."""
        return self.wrapper is not ModelWrapper.DDP or self.parallel is not None or self.clip_norm is not None

    def layout(self, world_size: int) -> ParallelLayout:
        """Return the mesh of the training for a world size."""
        return self.parallel or ParallelLayout(dp=world_size)

    def iteration_count(self, rank: int) -> int:
        """Return the number of iterations of a rank."""
        return self.iterations(rank) if isinstance(self.iterations, IterationRule) else self.iterations[rank]

    def action_of_rank(self, rank: int, iteration: int) -> Action:
        """Return the action of a rank in an iteration."""
        actions = [
            each.action for each in self.exceptions if each.action is not None and each.applies_to(rank, iteration)
        ]
        if actions:
            return actions[-1]
        return Action.ACCUMULATE if (iteration + 1) % self.accumulation else Action.TRAIN

    def branches_used(self, rank: int, iteration: int, network: Network) -> tuple[str, ...] | None:
        """Return the branches of `network` that a rank's batch uses; None for all branches."""
        used = [each.uses for each in self.exceptions if each.uses is not None and each.applies_to(rank, iteration)]
        return tuple(branch for branch in network.branches if branch in used[-1]) if used else None

    def make_network(self, index: int, *, seed: int | None = None, dtype: torch.dtype | None = None) -> Network:
        """Return a new network with the initial values of rank 0, unless another seed is given."""
        choice = self.networks[index]
        made = make_network(
            choice.name, choice.options, seed=self.seed if seed is None else seed, dtype=dtype or self.dtype
        )
        made.recomputes = self.recomputes
        return made

    def make_batch(self, network: Network, rank: int, iteration: int) -> Tensor:
        """Return the batch of a rank in an iteration. Each call returns the same values."""
        rows = self.rows if isinstance(self.rows, int) else self.rows[rank]
        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 1009 + iteration)
        return network.draw_batch(rows, generator)

    @property
    def fits_every_world(self) -> bool:
        """Return True if the training fits any world size, because it has no values by rank."""
        return isinstance(self.iterations, IterationRule) and isinstance(self.rows, int) and self.parallel is None
