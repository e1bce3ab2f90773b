"""What a drawn training leaves out: what contradicts itself, and what torch's engine cannot do or does not claim to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)


def sensible(training: Training) -> Training:
    """Without what contradicts itself: it would be refused, or mean nothing."""
    options = dict(training.engine_options)
    names = {choice.name for choice in training.networks}
    leaves_out = any(each.uses is not None for each in training.exceptions)
    if leaves_out:
        options |= {"find_unused_parameters": True, "static_graph": False}
    if any(each.action is not None for each in training.exceptions):
        options["static_graph"] = False
    compresses = training.communication_hook in (CommunicationHook.FP16_COMPRESS, CommunicationHook.BF16_COMPRESS)
    if compresses or "sync_batch_norm" in names:  # which rounds otherwise than the oracle does
        # Adam divides by a gradient's own size, and makes much of the rounding of a small one.
        training = replace(training, optimizer=structs.replace(training.optimizer, name=OptimizerName.SGD))
    if training.averages_buffers:  # engines differ in when they run the hook where no reduction follows
        training = _with_actions(training, None, Action.SKIP, Action.SKIP_STEP)
        options["broadcast_buffers"] = True
    if "embedding" in names:  # sparse gradients: adam refuses them, hooks and views are for dense ones
        training = replace(training, optimizer=OptimizerChoice(learning_rate=0.01), communication_hook=None)
        options["gradient_as_bucket_view"] = False
    if names & {"batch_norm", "sync_batch_norm"}:  # their replicas evaluate differently past the wrapper, a finding
        training = _without(training, Action.EVALUATE_INNER)
    if "mixed_dtypes" in names:  # ZeroRedundancyOptimizer takes one dtype
        training = replace(training, optimizer=structs.replace(training.optimizer, is_sharded=False))
    if "sync_batch_norm" in names:  # its gradients on one rank alone mean nothing
        training = _without(training, Action.ACCUMULATE)
        if training.join is not None:  # of the few rows of one rank, its sums of squares lose what the oracle keeps
            training = replace(training, rows=6)
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


def possible_for_torch(training: Training) -> Training:
    """Without what torch's engine cannot do, most of it under join."""
    training = documented_by_torch(training)
    if any(each.uses is not None for each in training.exceptions):  # zoo: backward-skipped-before-no-sync
        training = _without(training, Action.SKIP_BACKWARD)
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
    # By the ranks present it divides the gradients of the first model only, and none that go through a hook.
    divides_by_all = training.communication_hook is not None or len(training.networks) > 1
    return replace(
        _with_actions(training, *Action),  # none that only says what is used
        networks=_without_networks(training, "embedding"),  # a joined rank has never seen its sparse bucket
        engine_options=options,
        join=JoinTerms(divides_by_all or join.divide_by_initial_world_size),
        optimizer=structs.replace(training.optimizer, is_sharded=False),
    )


def documented_by_torch(training: Training) -> Training:
    """Without what torch's documentation rules out; what is left it should train, whether or not it does.

    Under join a loop has no collectives of its own, nor has a forward, and each forward has a backward.
    """
    if training.communication_hook is CommunicationHook.BF16_COMPRESS:  # only with NCCL
        training = replace(training, communication_hook=CommunicationHook.FP16_COMPRESS)
    if training.join is None:
        return training
    training = _without(_without(training, Action.SKIP_BACKWARD), Action.EVALUATE)
    return replace(training, networks=_without_networks(training, "sync_batch_norm"), reduces_loss=False)


def _without_networks(training: Training, name: str) -> tuple[NetworkChoice, ...]:
    return tuple(NetworkChoice("mlp") if each.name == name else each for each in training.networks)
