"""Hypothesis strategy of declared trainings that have a defined result, so that the oracle can judge them."""

from dataclasses import replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from msgspec import structs

from ddpsim.scenarios.training.models import NETWORKS
from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    ExceptionalIterations,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)

_CHEAP_NETWORKS: dict[str, dict[str, object]] = {
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
"""The networks to draw, at sizes that train in a millisecond."""

_ROWS = st.integers(3, 6)
"""The numbers of rows to draw for a batch. Two rows are left out: batch normalisation always maps them to the same
numbers, so their gradient is only rounding."""

_COMMON_ACTIONS = [
    Action.ACCUMULATE,
    Action.SKIP_BACKWARD,
    Action.SKIP_STEP,
    Action.SKIP,
    Action.EVALUATE,
    Action.EVALUATE_INNER,
]
"""The actions that all ranks may take together in an iteration instead of training."""


@st.composite
def trainings(draw: st.DrawFn, *, for_torch: bool | Literal["documented"] = False) -> tuple[Training, int]:
    """Draw a declared training and its world size, from 1 to 4.

    Drawn are one or two networks, with buffers, branches, sparse gradients or several dtypes among them; up to 4
    iterations for each rank, equally many or under join (a rank may have none); rows by rank; options of
    DistributedDataParallel, optimizers (sharded ones, too), communication hooks, a buffer hook, a reduced loss; ranks
    that leave out branches; and iterations in which all ranks accumulate, skip or evaluate.

    Our engine must train each of them as the oracle does. torch's engine has limits, and a zoo scenario shows each as a
    bug. `for_torch=True` stays within all of these limits. "documented" stays within the documented limits only, so it
    finds the others as bugs.

        @given(trainings(for_torch=True))
        def test_my_engine(chosen):
            training, world_size = chosen
            result = run_scenario(of_training(training, world_size, name="drawn"))
            assert result.verdict is Verdict.PASS, result
    """
    world_size = draw(st.sampled_from([2, 3, 4, 2, 3, 4, 1]))
    is_joined = draw(st.booleans())
    counts = draw(_draw_iteration_counts(world_size, is_joined))
    names = draw(st.lists(st.sampled_from([*_CHEAP_NETWORKS]), min_size=1, max_size=2))
    training = Training(
        tuple(NetworkChoice(name, _CHEAP_NETWORKS[name]) for name in names),
        counts,
        draw(_ROWS | st.tuples(*[_ROWS] * world_size)),
        draw(_draw_engine_options()),
        JoinOptions(draw(st.booleans())) if is_joined else None,
        draw(_draw_optimizer()),
        draw(st.none() | st.sampled_from(CommunicationHook)),
        reduces_loss=draw(st.booleans()),
        averages_buffers=not is_joined and "batch_norm" in names and draw(st.booleans()),
        exceptions=(*draw(_draw_actions(counts)), *draw(_draw_branch_uses(names, counts))),
        seed=draw(st.integers(0, 99)),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
    )
    training = remove_contradictions(training)
    if for_torch:
        training = limit_to_torch_documentation(training) if for_torch == "documented" else limit_to_torch(training)
    return training, world_size


def _draw_iteration_counts(world_size: int, is_joined: bool) -> st.SearchStrategy[tuple[int, ...]]:
    if is_joined:
        return st.tuples(*[st.integers(0, 4)] * world_size)
    return st.integers(1, 4).map(lambda count: (count,) * world_size)


@st.composite
def _draw_engine_options(draw: st.DrawFn) -> dict[str, object]:
    options: dict[str, object] = {
        "find_unused_parameters": draw(st.booleans()),
        "gradient_as_bucket_view": draw(st.booleans()),
        "static_graph": draw(st.sampled_from([False, False, True])),
        "broadcast_buffers": draw(st.sampled_from([True, True, False])),
    }
    cap = draw(st.sampled_from([None, 0.00005, 0.0005]))
    return options if cap is None else {**options, "bucket_cap_mb": cap}


@st.composite
def _draw_optimizer(draw: st.DrawFn) -> OptimizerChoice:
    name = draw(st.sampled_from(OptimizerName))
    momentum = draw(st.sampled_from([0.0, 0.9])) if name is OptimizerName.SGD else 0.0
    return OptimizerChoice(name, 0.01, momentum, is_sharded=draw(st.sampled_from([False, False, True])))


@st.composite
def _draw_actions(draw: st.DrawFn, counts: tuple[int, ...]) -> list[ExceptionalIterations]:
    """Draw iterations in which all ranks accumulate, skip or evaluate instead of training."""
    iterations = draw(st.lists(st.integers(0, max(max(counts) - 1, 0)), max_size=4, unique=True))
    return [
        ExceptionalIterations(None, (iteration,), draw(st.sampled_from(_COMMON_ACTIONS))) for iteration in iterations
    ]


@st.composite
def _draw_branch_uses(draw: st.DrawFn, names: list[str], counts: tuple[int, ...]) -> list[ExceptionalIterations]:
    """Draw ranks and iterations that leave out branches of their network."""
    branches = {name: NETWORKS[name]().branches for name in names}
    if not any(branches.values()) or not max(counts):
        return []
    places = st.tuples(st.integers(0, len(counts) - 1), st.integers(0, max(counts) - 1))
    return [
        ExceptionalIterations(
            (rank,),
            (iteration,),
            uses=tuple(branch for each in names for branch in draw(_draw_first_branches(branches[each]))),
        )
        for rank, iteration in draw(st.lists(places, min_size=1, max_size=4, unique=True))
    ]


def _draw_first_branches(branches: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Draw how many branches a batch uses: always the first ones, as early exits need the earlier stages."""
    return st.integers(0, len(branches)).map(lambda count: branches[:count])


def remove_contradictions(training: Training) -> Training:
    """Remove options that contradict each other: with them a training would be refused, or have no defined result."""
    options = dict(training.engine_options)
    names = {choice.name for choice in training.networks}
    leaves_out = any(each.uses is not None for each in training.exceptions)
    if leaves_out:
        options |= {"find_unused_parameters": True, "static_graph": False}
    if any(each.action is not None for each in training.exceptions):
        options["static_graph"] = False
    compresses = training.communication_hook in (CommunicationHook.FP16_COMPRESS, CommunicationHook.BF16_COMPRESS)
    if compresses or "sync_batch_norm" in names:  # its rounding differs from the oracle's
        # Adam divides by a gradient's own size, so rounding of a small gradient matters much.
        training = replace(training, optimizer=structs.replace(training.optimizer, name=OptimizerName.SGD))
    if training.averages_buffers:  # engines differ in when they run the hook if no reduction follows
        training = _keep_actions(training, None, Action.SKIP, Action.SKIP_STEP)
        options["broadcast_buffers"] = True
    if "embedding" in names:  # sparse gradients: adam refuses them, hooks and views support dense ones
        training = replace(training, optimizer=OptimizerChoice(learning_rate=0.01), communication_hook=None)
        options["gradient_as_bucket_view"] = False
    if names & {"batch_norm", "sync_batch_norm"}:  # evaluating past the wrapper, their replicas differ: a finding
        training = _remove_action(training, Action.EVALUATE_INNER)
        if not options["broadcast_buffers"]:  # so do they in the wrapper
            training = _remove_action(training, Action.EVALUATE)
    if "mixed_dtypes" in names:  # ZeroRedundancyOptimizer requires one dtype
        training = replace(training, optimizer=structs.replace(training.optimizer, is_sharded=False))
    if "sync_batch_norm" in names:  # its gradients on a single rank have no meaning
        training = _remove_action(training, Action.ACCUMULATE)
        if training.join is not None:  # one rank's few rows lose precision that the oracle keeps
            training = replace(training, rows=6)
    if training.join is not None and training.optimizer.is_sharded:
        # torch's Join does not know the loop's own collectives, and its optimizer steps in every iteration. If no rank
        # uses a branch, a joined rank still has the old gradient, because it does not learn that the others cleared it.
        training = _keep_actions(replace(training, reduces_loss=False), Action.EVALUATE_INNER)
    return replace(training, engine_options=options)


def _keep_actions(training: Training, *actions: Action | None) -> Training:
    """Keep only the exceptions with one of these actions.

    `None` among the actions keeps exceptions that only name branches.
    """
    return replace(training, exceptions=tuple(each for each in training.exceptions if each.action in actions))


def _remove_action(training: Training, action: Action) -> Training:
    return _keep_actions(training, None, *(each for each in Action if each is not action))


def limit_to_torch(training: Training) -> Training:
    """Remove what torch's engine cannot do; most of this concerns training under join."""
    training = limit_to_torch_documentation(training)
    if any(each.uses is not None for each in training.exceptions):  # zoo: backward-skipped-before-no-sync
        training = _remove_action(training, Action.SKIP_BACKWARD)
    join = training.join
    if join is None:
        return training
    # A joined rank answers for a static graph that it has recorded; its map of used parameters may be outdated.
    has_recorded = isinstance(training.iterations, tuple) and min(training.iterations) > 0
    is_static = has_recorded and bool(training.engine_options["static_graph"])
    options: dict[str, Any] = {**training.engine_options, "find_unused_parameters": False, "static_graph": is_static}
    # It divides by the ranks present only the gradients of the first model, and none that go through a hook.
    divides_by_all = training.communication_hook is not None or len(training.networks) > 1
    return replace(
        _keep_actions(training, *Action),  # no exceptions that only name branches
        networks=_replace_network(training, "embedding"),  # a joined rank does not know its sparse bucket
        engine_options=options,
        join=JoinOptions(divides_by_all or join.divide_by_initial_world_size),
        optimizer=structs.replace(training.optimizer, is_sharded=False),
    )


def limit_to_torch_documentation(training: Training) -> Training:
    """Remove what torch's documentation excludes, so that the training should be correct on torch. Bugs may still show.
    Under join the documentation allows no other collectives in loop or forward, and each forward needs a backward."""
    if training.communication_hook is CommunicationHook.BF16_COMPRESS:  # NCCL only
        training = replace(training, communication_hook=CommunicationHook.FP16_COMPRESS)
    if training.join is None:
        return training
    training = _remove_action(_remove_action(training, Action.SKIP_BACKWARD), Action.EVALUATE)
    return replace(training, networks=_replace_network(training, "sync_batch_norm"), reduces_loss=False)


def _replace_network(training: Training, name: str) -> tuple[NetworkChoice, ...]:
    return tuple(NetworkChoice("mlp") if each.name == name else each for each in training.networks)
