"""Hypothesis strategy of trainings with shards, tensor parallelism and pipelines that the oracle can judge."""

import torch
from hypothesis import strategies as st
from msgspec import structs

from ddpsim.scenarios.training.models import make_meta_network
from ddpsim.scenarios.training.training import (
    Action,
    ExceptionalIterations,
    IterationRule,
    ModelWrapper,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Options,
    ParallelLayout,
    PipelineSchedule,
    Training,
)

_NETWORKS: tuple[tuple[str, Options], ...] = (
    ("linear", {}),
    ("mlp", {}),
    ("mlp", {"hidden": (8, 8, 8)}),
    ("transformer", {"depth": 2, "tied": False}),
)
"""Networks with layers that can be cut and split, at sizes that train in some milliseconds."""
_MESHES = (
    ParallelLayout(dp=2),
    ParallelLayout(dp=3),
    ParallelLayout(tp=2),
    ParallelLayout(pp=2),
    ParallelLayout(dp=2, tp=2),
    ParallelLayout(dp=2, pp=2),
    ParallelLayout(tp=2, pp=2),
    ParallelLayout(dp_replicate=2, dp_shard=2),
)
_SCHEDULES = (
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.GPIPE,
    PipelineSchedule.INTERLEAVED_1F1B,
    PipelineSchedule.LOOPED_BFS,
)
"""The pipeline schedules to draw; no zero bubble ones with `fully_shard`, which lose gradients (torch 2.13)."""
_COMMON_ACTIONS = (Action.ACCUMULATE, Action.SKIP_STEP, Action.SKIP, Action.EVALUATE)
"""The actions that all ranks may take together in an iteration instead of training."""


@st.composite
def parallel_trainings(draw: st.DrawFn) -> tuple[Training, int]:
    """Draw a declared training with `fully_shard`, over a mesh of 2 to 4 ranks, and its world size.

    Drawn are the mesh (a hybrid one, too), networks that can be cut and split, schedules and micro-batches,
    accumulation, mixed precision, activation checkpointing, clipping, optimizers, and iterations in which all ranks
    accumulate, skip or evaluate. torch supports all of them, and the result has to agree with the oracle.
    """
    name, options = draw(st.sampled_from(_NETWORKS))
    layers = len(make_meta_network(name, options).layers_in_order())
    layout = draw(st.sampled_from([each for each in _MESHES if each.pp <= layers]))
    if layout.pp > 1:
        layout = draw(_draw_pipeline(layout, layers))
    iterations = draw(st.integers(1, 3))
    mixed_precision = draw(st.sampled_from([None, None, torch.bfloat16]))
    # Adam divides by a gradient's own size, so rounding of a small gradient matters much.
    names = [OptimizerName.SGD] if mixed_precision else [*OptimizerName]
    training = Training(
        (NetworkChoice(name, options),),
        IterationRule(iterations),
        rows=layout.micro_batch_count * draw(st.integers(1, 2)) * 2,
        optimizer=OptimizerChoice(draw(st.sampled_from(names)), 0.01),
        exceptions=tuple(draw(_draw_actions(iterations))),
        seed=draw(st.integers(0, 99)),
        wrapper=ModelWrapper.FSDP2,
        parallel=layout,
        accumulation=draw(st.integers(1, 2)),
        mixed_precision=mixed_precision,
        recomputes=draw(st.booleans()),
        clip_norm=draw(st.sampled_from([None, 0.1, 10.0])),
    )
    return training, layout.world_size


@st.composite
def _draw_pipeline(draw: st.DrawFn, mesh: ParallelLayout, layers: int) -> ParallelLayout:
    """Draw a pipeline schedule and a number of micro-batches that torch accepts for this mesh."""
    fitting = [each for each in _SCHEDULES if mesh.pp * each.stages_per_rank <= layers]
    parts = mesh.pp * draw(st.integers(1, 2))
    return structs.replace(mesh, schedule=draw(st.sampled_from(fitting)), micro_batches=parts)


@st.composite
def _draw_actions(draw: st.DrawFn, iterations: int) -> list[ExceptionalIterations]:
    found = draw(st.lists(st.integers(0, iterations - 1), max_size=2, unique=True))
    return [ExceptionalIterations(None, (each,), draw(st.sampled_from(_COMMON_ACTIONS))) for each in found]
