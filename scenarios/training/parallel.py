"""The layout of a declared training over its ranks: a mesh of pipeline, data and tensor parallelism, as values.

Ranks fill the mesh in the order `pp`, `dp`, `tp`, the last one fastest, as in torchtitan: ranks of one `tp` group are
neighbours. With hybrid data parallelism (HSDP), `dp` is two dimensions: `dp_replicate`, then `dp_shard`.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

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
