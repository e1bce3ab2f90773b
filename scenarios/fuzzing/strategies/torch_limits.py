"""Reduce a drawn training to options that are consistent, and to what torch's engine can do or documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)


def remove_contradictions(training: Training) -> Training:
    """Remove options that contradict each other. With them the training would be refused, or have no defined result."""
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
    options: dict[str, Any] = {
        **training.engine_options,
        "find_unused_parameters": False,
        "static_graph": is_static,
    }
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
    """Remove what torch's documentation excludes.

    The remaining training should be correct on torch, but may show a bug. Under join the documentation allows no other
    collectives in loop or forward, and each forward needs a backward.
    """
    if training.communication_hook is CommunicationHook.BF16_COMPRESS:  # NCCL only
        training = replace(training, communication_hook=CommunicationHook.FP16_COMPRESS)
    if training.join is None:
        return training
    training = _remove_action(_remove_action(training, Action.SKIP_BACKWARD), Action.EVALUATE)
    return replace(training, networks=_replace_network(training, "sync_batch_norm"), reduces_loss=False)


def _replace_network(training: Training, name: str) -> tuple[NetworkChoice, ...]:
    return tuple(NetworkChoice("mlp") if each.name == name else each for each in training.networks)
