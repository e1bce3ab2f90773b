"""The oracle: what a data parallel training must come to, by plain training in one process.

Note [What DDP means]. There is one copy of the parameters and of the optimizer, because the ranks' copies never differ:
they begin with rank 0's, and every step applies one gradient to all of them. What each rank does own is the gradient of
its own batches and the buffers of its own forwards. In an iteration

- the ranks *present* are those that still have input; the others are waited for by nobody under join;
- before a forward, everybody takes over the buffers of one rank: rank 0, or under join, where that may be gone, the
  highest one present; unless the forward before was under no_sync or without gradients;
- each rank present runs its batch and adds to its gradients;
- where the gradients meet, each parameter's are summed over the ranks that have one, and divided by the world size, or
  by the number of ranks present (`divide_by_initial_world_size=False`). A parameter that no rank used keeps none.

At the end of a join all ranks take over the model of the last one that made a forward; of several, the highest.

A network that communicates in its forward computes on all batches at once, and so does the oracle: it runs the batches
of the ranks present as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scenarios.models import Network
from scenarios.snapshot import History, Snapshot, snapshot, together
from scenarios.trainer import optimizer_of
from scenarios.training import Action, CommunicationHook, Training
from simulator import UsageError

Gradients = dict[str, "Tensor | None"]


@dataclass(slots=True)
class _Rank:
    """What a rank does not share with the others."""

    number: int
    buffers: dict[str, Tensor]
    gradients: Gradients
    history: list[Snapshot]
    forwards: int = 0
    """Through the wrapper: by them the ranks know each other's presence."""


def train(training: Training, world_size: int) -> tuple[History, ...]:
    """By rank, what its models must hold after each iteration and at the end.

    Raises UsageError for a training without a meaning of its own: ranks that do different things in one iteration, or
    leave a loop that no join surrounds.
    """
    check_has_meaning(training, world_size)
    networks = [_train(training, index, world_size) for index in range(len(training.networks))]
    return tuple(
        tuple(
            together({str(i): moment for i, moment in enumerate(moments)}) for moments in zip(*histories, strict=True)
        )
        for histories in zip(*networks, strict=True)
    )


def _train(training: Training, index: int, world_size: int) -> list[History]:
    model = training.network(index)
    optimizer = optimizer_of(replace(training.optimizer, is_sharded=False), model.parameters())
    names = [name for name, _ in model.named_parameters()]
    ranks = [_Rank(rank, _buffers(model), dict.fromkeys(names), []) for rank in range(world_size)]
    shares_buffers = _shares_buffers(training)
    is_stale = shares_buffers  # somebody's buffers are to be taken over before the next forward
    counts = [training.count(rank) for rank in range(world_size)]
    for iteration in range(max(counts)):
        present = [rank for rank in ranks if iteration < counts[rank.number]]
        action = training.action(present[0].number, iteration)
        if is_stale and (action.has_forward or action is Action.EVALUATE):
            source = present[-1] if training.join else ranks[0]
            for rank in ranks:
                rank.buffers = dict(source.buffers)
        if action.has_forward:
            _forward(training, model, present, iteration)
        if action.has_forward or action is Action.EVALUATE:
            for rank in present:
                rank.forwards += 1
            is_stale = shares_buffers and action not in (Action.ACCUMULATE, Action.EVALUATE)
        if action in (Action.TRAIN, Action.SKIP_STEP):
            divisor = (
                world_size if training.join is None or training.join.divide_by_initial_world_size else len(present)
            )
            met = _meet([rank.gradients for rank in present], divisor, training.communication_hook)
            for rank in present:
                rank.gradients = dict(met)
        if action is Action.TRAIN:
            _load(model, present[0])
            optimizer.step()
        for rank in present:
            _load(model, rank)
            rank.history.append(snapshot(model, iteration, gradients=True))
            if action is Action.TRAIN:
                rank.gradients = dict.fromkeys(names)
    last = max(ranks, key=lambda rank: (rank.forwards, rank.number))
    for rank in ranks:
        if training.join and shares_buffers:
            rank.buffers = last.buffers
        _load(model, rank)
        rank.history.append(snapshot(model))
    return [tuple(rank.history) for rank in ranks]


def _forward(training: Training, model: Network, present: Sequence[_Rank], iteration: int) -> None:
    """Each rank's forward, and its backward if it makes one, with its own buffers and gradients."""
    teams = [present] if model.communicates else [[rank] for rank in present]
    for team in teams:
        batches = [training.batch(model, rank.number, iteration) for rank in team]
        _load(model, team[0])
        outputs = model(torch.cat(batches), training.uses(team[0].number, iteration))
        losses = [output.square().mean() for output in outputs.split([len(batch) for batch in batches])]
        if training.action(team[0].number, iteration).has_backward:
            torch.stack(losses).sum().backward()
        for rank in team:
            rank.buffers = _buffers(model)
        # A team's sum stands with its first member: only the sum over the ranks is ever used.
        team[0].gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if training.averages_buffers:
        _average_buffers(present)


def _average_buffers(present: Sequence[_Rank]) -> None:
    for name, buffer in present[0].buffers.items():
        if buffer.is_floating_point():
            mean = torch.stack([rank.buffers[name] for rank in present]).mean(dim=0)
            for rank in present:
                rank.buffers[name] = mean


def _meet(gradients: Sequence[Gradients], divisor: int, hook: CommunicationHook | None) -> Gradients:
    """Of each parameter: the sum over the ranks that have a gradient, divided; added in `hook`'s dtype."""
    met: Gradients = {}
    for name in gradients[0]:
        found = [tensor for own in gradients if (tensor := own[name]) is not None]
        terms = [(tensor.to(dtype_of(hook) or tensor.dtype) / divisor) for tensor in found]
        met[name] = sum(terms[1:], terms[0]).to(found[0].dtype) if terms else None
    return met


def dtype_of(hook: CommunicationHook | None) -> torch.dtype | None:
    """The dtype that a communication hook sends gradients in, if not their own."""
    return {CommunicationHook.FP16_COMPRESS: torch.float16, CommunicationHook.BF16_COMPRESS: torch.bfloat16}.get(
        hook or CommunicationHook.ALLREDUCE
    )


def _shares_buffers(training: Training) -> bool:
    return bool(training.engine_options.get("broadcast_buffers", True)) and not training.averages_buffers


def _buffers(model: Network) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _load(model: Network, rank: _Rank) -> None:
    """Give the model what this rank does not share with the others."""
    for name, buffer in model.named_buffers():
        buffer.copy_(rank.buffers[name])
    for name, parameter in model.named_parameters():
        gradient = rank.gradients[name]
        parameter.grad = None if gradient is None else gradient.clone()


def check_has_meaning(training: Training, world_size: int) -> None:
    """Raise UsageError for a training that plain training has no counterpart of."""
    counts = [training.count(rank) for rank in range(world_size)]
    if training.join is None and len(set(counts)) > 1:
        raise UsageError(f"iterations are {counts} without a join, expected equal numbers to compare with the oracle")
    for iteration in range(max(counts)):
        actions = {training.action(r, iteration).value for r in range(world_size) if iteration < counts[r]}
        if len(actions) > 1:
            raise UsageError(
                f"ranks {' or '.join(sorted(actions))} in iteration {iteration}, expected one action for all that have "
                "input to compare with the oracle"
            )
