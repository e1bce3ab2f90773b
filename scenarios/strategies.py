"""Hypothesis strategies: declared trainings that have a meaning of their own, so that the oracle can judge them.

Whatever is drawn here, our engine must train as the oracle does. torch's engine has limits of its own (`for_torch`),
each of which the zoo shows as a bug.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from scenarios.models import NETWORKS
from scenarios.training import (
    Action,
    CommunicationHook,
    Exceptional,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)

_CHEAP: dict[str, dict[str, object]] = {
    "linear": {},
    "embedding": {},
    "batch_norm": {},
    "branches": {},
    "early_exit": {},
    "mlp": {},
    "shared": {},
    "mixed_dtypes": {},
    "sync_batch_norm": {},
    "transformer": {"depth": 1},
    "conv": {"channels": 4, "depth": 2},
}
"""The networks that are drawn, at sizes that train in a millisecond."""

_ROWS = st.integers(3, 6)
"""Two rows normalise to the same numbers, whatever they are, and leave nothing but rounding for a gradient."""

_ALIKE = [
    Action.ACCUMULATE,
    Action.SKIP_BACKWARD,
    Action.SKIP_STEP,
    Action.SKIP,
    Action.EVALUATE,
    Action.EVALUATE_INNER,
]
"""What all ranks may do together instead of training."""


@st.composite
def trainings(draw: st.DrawFn, *, for_torch: bool = False) -> tuple[Training, int]:
    """A declared training and its world size, from 1 to 4; within what torch's engine can do if `for_torch`."""
    world_size = draw(st.sampled_from([2, 3, 4, 2, 3, 4, 1]))
    is_joined = draw(st.booleans())
    counts = draw(_counts(world_size, is_joined))
    names = draw(st.lists(st.sampled_from([*_CHEAP]), min_size=1, max_size=2))
    training = Training(
        tuple(NetworkChoice(name, _CHEAP[name]) for name in names),
        counts,
        draw(_ROWS | st.tuples(*[_ROWS] * world_size)),
        draw(_engine_options()),
        JoinTerms(draw(st.booleans())) if is_joined else None,
        draw(_optimizers()),
        draw(st.none() | st.sampled_from(CommunicationHook)),
        reduces_loss=draw(st.booleans()),
        averages_buffers=not is_joined and "batch_norm" in names and draw(st.booleans()),
        exceptions=(*draw(_actions(counts)), *draw(_uses(names, counts))),
        seed=draw(st.integers(0, 99)),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
    )
    training = _sensible(training)
    return (_possible_for_torch(training) if for_torch else training), world_size


def _counts(world_size: int, is_joined: bool) -> st.SearchStrategy[tuple[int, ...]]:
    if is_joined:
        return st.tuples(*[st.integers(0, 4)] * world_size)
    return st.integers(1, 4).map(lambda count: (count,) * world_size)


@st.composite
def _engine_options(draw: st.DrawFn) -> dict[str, object]:
    options: dict[str, object] = {
        "find_unused_parameters": draw(st.booleans()),
        "gradient_as_bucket_view": draw(st.booleans()),
        "static_graph": draw(st.sampled_from([False, False, True])),
        "broadcast_buffers": draw(st.sampled_from([True, True, False])),
    }
    cap = draw(st.sampled_from([None, 0.00005, 0.0005]))
    return options if cap is None else {**options, "bucket_cap_mb": cap}


@st.composite
def _optimizers(draw: st.DrawFn) -> OptimizerChoice:
    name = draw(st.sampled_from(OptimizerName))
    momentum = draw(st.sampled_from([0.0, 0.9])) if name is OptimizerName.SGD else 0.0
    return OptimizerChoice(name, 0.01, momentum, is_sharded=draw(st.sampled_from([False, False, True])))


@st.composite
def _actions(draw: st.DrawFn, counts: tuple[int, ...]) -> list[Exceptional]:
    """In some iterations, all ranks do something else."""
    iterations = draw(st.lists(st.integers(0, max(max(counts) - 1, 0)), max_size=4, unique=True))
    return [Exceptional(None, (iteration,), draw(st.sampled_from(_ALIKE))) for iteration in iterations]


@st.composite
def _uses(draw: st.DrawFn, names: list[str], counts: tuple[int, ...]) -> list[Exceptional]:
    """Some ranks leave out branches in some iterations."""
    branches = {name: NETWORKS[name]().branches for name in names}
    if not any(branches.values()) or not max(counts):
        return []
    places = st.tuples(st.integers(0, len(counts) - 1), st.integers(0, max(counts) - 1))
    return [
        Exceptional(
            (rank,), (iteration,), uses=tuple(branch for each in names for branch in draw(_way(branches[each])))
        )
        for rank, iteration in draw(st.lists(places, min_size=1, max_size=4, unique=True))
    ]


def _way(branches: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Branches that are taken: the first few, as a network that exits early has no way to the later ones alone."""
    return st.integers(0, len(branches)).map(lambda count: branches[:count])


def _sensible(training: Training) -> Training:
    """Without what contradicts itself: it would be refused, or mean nothing."""
    options = dict(training.engine_options)
    names = {choice.name for choice in training.networks}
    leaves_out = any(each.uses is not None for each in training.exceptions)
    if leaves_out:
        options |= {"find_unused_parameters": True, "static_graph": False}
    if any(each.action is not None for each in training.exceptions):
        options["static_graph"] = False
    if training.communication_hook in (CommunicationHook.FP16_COMPRESS, CommunicationHook.BF16_COMPRESS):
        # Adam divides by a gradient's own size, and makes much of the rounding of a small one.
        training = replace(training, optimizer=replace(training.optimizer, name=OptimizerName.SGD))
    if training.averages_buffers:  # engines differ in when they run the hook where no reduction follows
        training = _with_actions(training, None, Action.SKIP, Action.SKIP_STEP)
        options["broadcast_buffers"] = True
    if "embedding" in names:  # sparse gradients: adam refuses them, hooks and views are for dense ones
        training = replace(training, optimizer=OptimizerChoice(learning_rate=0.01), communication_hook=None)
        options["gradient_as_bucket_view"] = False
    if names & {"batch_norm", "sync_batch_norm"}:  # their replicas evaluate differently past the wrapper, a finding
        training = _without(training, Action.EVALUATE_INNER)
    if "mixed_dtypes" in names:  # ZeroRedundancyOptimizer takes one dtype
        training = replace(training, optimizer=replace(training.optimizer, is_sharded=False))
    if "sync_batch_norm" in names:  # its gradients on one rank alone mean nothing
        training = _without(training, Action.ACCUMULATE)
    if training.join is not None and training.optimizer.is_sharded:
        # torch's Join knows no collectives of the loop's own, and its optimizer steps in every iteration. Of a branch
        # that nobody uses, a joined rank still has the gradient of before: it does not hear that the others cleared it.
        training = _with_actions(replace(training, reduces_loss=False), Action.EVALUATE_INNER)
    return replace(training, engine_options=options)


def _with_actions(training: Training, *actions: Action | None) -> Training:
    """Only the exceptions that have one of these actions; None for those that only say what is used."""
    return replace(training, exceptions=tuple(each for each in training.exceptions if each.action in actions))


def _without(training: Training, action: Action) -> Training:
    return _with_actions(training, None, *(each for each in Action if each is not action))


def _possible_for_torch(training: Training) -> Training:
    """Without what torch's engine cannot do, most of it under join."""
    if training.communication_hook is CommunicationHook.BF16_COMPRESS:  # only with CUDA
        training = replace(training, communication_hook=CommunicationHook.FP16_COMPRESS)
    join = training.join
    if join is None:
        return training
    # A joined rank shadows a static graph that it has recorded; its map of used parameters may be an old one.
    has_recorded = isinstance(training.iterations, tuple) and min(training.iterations) > 0
    is_static = has_recorded and bool(training.engine_options["static_graph"])
    options: dict[str, Any] = {
        **training.engine_options,
        "find_unused_parameters": False,
        "static_graph": is_static,
    }
    training = _with_actions(training, Action.ACCUMULATE, Action.SKIP_STEP, Action.SKIP, Action.EVALUATE_INNER)
    # By the ranks present it divides the gradients of the first model only, and none that go through a hook.
    # A joined rank cannot make the collectives of a forward, nor reduce a sparse bucket that it has never seen.
    apart = ("sync_batch_norm", "embedding")
    divides_by_all = training.communication_hook is not None or len(training.networks) > 1
    return replace(
        training,
        networks=tuple(NetworkChoice("mlp") if each.name in apart else each for each in training.networks),
        engine_options=options,
        join=JoinTerms(divides_by_all or join.divide_by_initial_world_size),
        optimizer=replace(training.optimizer, is_sharded=False),
        reduces_loss=False,
    )
