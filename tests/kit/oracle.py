"""What DDP means, in plain torch and one process: one model, every rank's batches in turn, and plain arithmetic.

There is one copy of the parameters, because the ranks' copies never differ: they begin with rank 0's, and every step
applies one gradient to all of them. What ranks do own is the gradient of their own batches and the module's buffers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.kit.training import Trained, Training, copied, seeded, trained

Gradients = dict[str, "Tensor | None"]


Meet = Callable[[list[Gradients], int], Gradients]
"""How the gradients of the ranks present become one, given the divisor: DDP's communication."""


def train(training: Training, model: nn.Module, *, meet: Meet | None = None, hands_round: bool = True) -> list[Trained]:
    """Train `model`, which stands for rank 0's before DDP wraps it; return what each rank has at the end.

    `hands_round`: at the end of a join everybody takes over one rank's buffers; not if the join raised.
    """
    meet = meet or average
    optimizer = training.optimizer(model)
    counts = [len(own) for own in training.batches]
    ranks = range(training.world_size)
    buffers = [_buffers(model) for _ in ranks]
    gradients: list[Gradients] = [dict.fromkeys(name for name, _ in model.named_parameters()) for _ in ranks]
    for iteration in range(max(counts, default=0)):
        present = [rank for rank in ranks if iteration < counts[rank]]
        assert training.is_joined or len(present) == training.world_size, "equal inputs, unless ranks join"
        # Before a forward whose gradients will meet, everybody takes the buffers of one rank: rank 0, or under join,
        # where rank 0 may be gone, the highest that is present. After a backward that did not synchronise: nobody does.
        if training.synchronizes_buffers and (iteration == 0 or training.closes_step(iteration - 1)):
            buffers = [dict(buffers[present[-1] if training.is_joined else 0]) for _ in ranks]
        for rank in present:
            if training.clear_gradients and training.opens_step(iteration):
                gradients[rank] = {
                    name: None if gradient is None or training.set_to_none else gradient * 0
                    for name, gradient in gradients[rank].items()
                }
            _load(model, buffers[rank], gradients[rank])
            training.loss(model, training.batches[rank][iteration]).backward()
            buffers[rank] = _buffers(model)
            gradients[rank] = {name: parameter.grad for name, parameter in model.named_parameters()}
        if training.closes_step(iteration):
            divisor = training.world_size if training.divide_by_initial_world_size else len(present)
            met = meet([gradients[rank] for rank in present], divisor)
            for rank in present:
                gradients[rank] = met
            _load(model, buffers[0], met)
            optimizer.step()
    if training.is_joined and hands_round:
        last = max(ranks, key=lambda rank: (counts[rank], rank))
        buffers = [dict(buffers[last]) if training.synchronizes_buffers else buffers[rank] for rank in ranks]
    parameters = trained(model).parameters
    return [
        Trained(parameters, buffers[rank], {name: copied(gradient) for name, gradient in gradients[rank].items()})
        for rank in ranks
    ]


def train_on_all_rows(training: Training, model: nn.Module) -> Trained:
    """Train `model` on the rows of all ranks present at once; the loss is the mean of the ranks' own."""
    optimizer = training.optimizer(model)
    for step in range(max(map(len, training.batches))):
        present = [own[step] for own in training.batches if step < len(own)]
        divisor = training.world_size if training.divide_by_initial_world_size else len(present)
        optimizer.zero_grad()
        outputs = model(torch.cat(present)).split([len(batch) for batch in present])
        (sum(output.pow(2).mean() for output in outputs) / divisor).backward()
        optimizer.step()
    return trained(model)


def average(gradients: list[Gradients], divisor: int) -> Gradients:
    """By parameter, each rank's is divided, and then they are added in rank order; None where no rank has one."""
    averaged: Gradients = {}
    for name in gradients[0]:
        shares = [own[name] / divisor for own in gradients if own[name] is not None]
        averaged[name] = sum(shares[1:], shares[0]) if shares else None
    return averaged


def expected(training: Training, *, meet: Meet | None = None) -> list[Trained]:
    """What each rank must have, if it all starts from rank 0's parameters."""
    return train(training, seeded(training.build), meet=meet)


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _load(model: nn.Module, buffers: dict[str, Tensor], gradients: Gradients) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    for name, parameter in model.named_parameters():
        gradient = gradients[name]
        parameter.grad = None if gradient is None else gradient.clone()
