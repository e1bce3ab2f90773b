"""A declared training as frozen values: its networks, its batches, the action of each rank in each iteration, and its
layout over the ranks, a mesh of pipeline, data and tensor parallelism.

`trainer.py` runs the training on the ranks of a process group; with a mesh, `parallel_trainer.py` does. `oracle.py`
computes the expected result. All three get the same networks and batches from this module.

Ranks fill the mesh in the order `pp`, `dp`, `tp`, the last one fastest, as in torchtitan: ranks of one `tp` group are
neighbours. With hybrid data parallelism (HSDP), `dp` is two dimensions: `dp_replicate`, then `dp_shard`.
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

_Size = Annotated[int, Meta(ge=1, le=1024)]


class ModelWrapper(str, Enum):
    """The wrapper that keeps the copies of a model, or the shards of a model, in sync."""

    DDP = "ddp"
    """DistributedDataParallel."""
    FSDP2 = "fsdp2"
    """`torch.distributed.fsdp.fully_shard`."""


class PipelineSchedule(str, Enum):
    """torch's pipeline schedules that can be declared."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_1F1B = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    INTERLEAVED_ZERO_BUBBLE = "interleaved_zero_bubble"
    ZBV_ZERO_BUBBLE = "zbv_zero_bubble"

    @property
    def stages_per_rank(self) -> int:
        """Return how many stages a rank has; interleaved schedules have two."""
        return 1 if self in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B) else 2

    def stages_of_rank(self, coordinate: int, size: int) -> tuple[int, ...]:
        """Return the stages of the rank at this coordinate of the pipeline dimension `pp`."""
        if self.stages_per_rank == 1:
            return (coordinate,)
        # Zero bubble V runs back through the ranks; the others start again at the first.
        return coordinate, 2 * size - 1 - coordinate if self is PipelineSchedule.ZBV_ZERO_BUBBLE else size + coordinate


class ParallelLayout(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The sizes of a mesh of ranks, and the schedule of its pipelines."""

    dp: _Size = 1
    """The number of ranks in data parallelism, each with its own batches."""
    tp: _Size = 1
    """The number of ranks in tensor parallelism, which share each layer."""
    pp: _Size = 1
    """The number of ranks in a pipeline, each with a part of the layers."""
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    micro_batches: _Size | None = None
    """The number of micro-batches in a batch; None for as many as there are stages."""
    dp_replicate: _Size = 1
    """Instead of `dp`: the number of copies of the model, each in shards."""
    dp_shard: _Size = 1
    """Instead of `dp`: the number of shards of each copy."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the mesh."""
        return self.pp * self.data_size * self.tp

    @property
    def data_size(self) -> int:
        """Return the number of different batches that ranks use in an iteration."""
        return self.dp * self.dp_replicate * self.dp_shard

    @property
    def data_dimensions(self) -> tuple[str, ...]:
        """Return the dimensions of the mesh along which batches differ. A model is sharded along the last of them."""
        if self.dp_replicate > 1:
            return "dp_replicate", "dp_shard"
        return ("dp_shard",) if self.dp_shard > 1 else ("dp",)

    @property
    def stage_count(self) -> int:
        """Return the number of stages of a whole pipeline."""
        return self.pp * self.schedule.stages_per_rank if self.pp > 1 else 1

    @property
    def micro_batch_count(self) -> int:
        """Return the number of micro-batches of a batch."""
        return 1 if self.pp == 1 else self.micro_batches or self.stage_count

    @property
    def dimensions(self) -> dict[str, int]:
        """Return the dimensions of the mesh as names and sizes, without those of one rank except data parallelism."""
        data = self.data_dimensions
        return {name: getattr(self, name) for name in ("pp", *data, "tp") if name in data or getattr(self, name) > 1}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank in the mesh."""
        found = {}
        for name in reversed(("pp", *self.data_dimensions, "tp")):
            rank, found[name] = divmod(rank, getattr(self, name))
        return dict(reversed(found.items()))

    def data_rank(self, rank: int) -> int:
        """Return a rank's coordinate in data parallelism. Ranks with the same coordinate have the same batches."""
        return rank // self.tp % self.data_size

    def layers_of_stage(self, stage: int, layers: int) -> range:
        """Return the layers of a stage: each has equally many; remaining layers go to the first stages, one to each."""
        each, more = divmod(layers, self.stage_count)
        start = stage * each + min(stage, more)
        return range(start, start + each + (stage < more))


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
