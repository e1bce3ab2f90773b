"""The program that each rank runs in a declared training, written as a user would write it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim import agree, ddp
from ddpsim.scenarios.training.snapshot import History, Snapshot, join_model_snapshots, snapshot
from ddpsim.scenarios.training.training import Action, OptimizerChoice, OptimizerName, Training

_OPTIMIZERS = {
    OptimizerName.SGD: torch.optim.SGD,
    OptimizerName.ADAM: torch.optim.Adam,
    OptimizerName.ADAMW: torch.optim.AdamW,
}


def run_declared_training(rank: int, training: Training) -> History:
    """Train on a rank as declared. Return snapshots of the rank's models, after each iteration and at the end."""
    models = [_wrap_network(training, index, rank) for index in range(len(training.networks))]
    optimizers = [make_optimizer(training.optimizer, model.module.parameters()) for model in models]
    history = []
    with _join_context(models, optimizers, training):
        for iteration in range(training.iteration_count(rank)):
            for model, optimizer in zip(models, optimizers, strict=True):
                _run_iteration(model, optimizer, training, rank, iteration)
            history.append(_snapshot_of_models(models, iteration))
            for optimizer in optimizers if training.action_of_rank(rank, iteration) is Action.TRAIN else ():
                optimizer.zero_grad()
    return (*history, _snapshot_of_models(models, None))


def make_optimizer(choice: OptimizerChoice, parameters: Iterator[Parameter]) -> Any:
    """Return a new optimizer of the kind that the training declares."""
    options: dict[str, Any] = {"lr": choice.learning_rate}
    if choice.name is OptimizerName.SGD:
        options["momentum"] = choice.momentum
    kind = _OPTIMIZERS[choice.name]
    if not choice.is_sharded:
        return kind(parameters, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes seconds to import, and is rarely needed

    return ZeroRedundancyOptimizer(parameters, kind, **options)


def _run_iteration(model: Any, optimizer: Any, training: Training, rank: int, iteration: int) -> None:
    action = training.action_of_rank(rank, iteration)
    batch = training.make_batch(model.module, rank, iteration)
    forward = partial(_loss, batch=batch, uses=training.branches_used(rank, iteration, model.module))
    if action in (Action.EVALUATE, Action.EVALUATE_INNER):
        model.eval()
        with torch.no_grad():
            forward(model if action is Action.EVALUATE else model.module)
        model.train()
    if not action.has_forward:
        return
    with model.no_sync() if action is Action.ACCUMULATE else nullcontext():
        loss = forward(model)
        if action.has_backward:
            loss.backward()
    # A decision for all ranks must be the same on all.
    decisive = agree("loss", _sum_over_ranks(loss).item()) if training.reduces_loss else 0.0
    if action is Action.TRAIN and abs(decisive) != float("inf"):
        optimizer.step()


def _loss(model: Any, batch: Tensor, uses: tuple[str, ...] | None) -> Tensor:
    loss: Tensor = model(batch, uses).square().mean()
    return loss


def _wrap_network(training: Training, index: int, rank: int) -> Any:
    # Every rank begins with its own values, so that only DDP can make them equal to rank 0's.
    network = training.make_network(index, seed=training.seed + rank)
    model = DistributedDataParallel(network, **training.engine_options)  # type: ignore[arg-type]
    if training.communication_hook is not None:
        model.register_comm_hook(None, getattr(default_hooks, f"{training.communication_hook.value}_hook"))
    if training.averages_buffers:
        _average_buffers(model)
    return model


def _average_buffers(model: Any) -> None:
    if isinstance(model, ddp.DistributedDataParallel):
        for name, buffer in model.module.named_buffers():
            if buffer.is_floating_point():
                model.register_buffer_comm_hook(name, "mean", when="after")
        return

    def average(state: None, buffers: dict[str, Tensor]) -> None:
        for buffer in buffers.values():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= dist.get_world_size()

    model._register_buffer_comm_hook(None, average, _BufferCommHookLocation.POST_FORWARD)


def _join_context(
    models: Sequence[Any], optimizers: Sequence[Any], training: Training
) -> AbstractContextManager[object]:
    """Return the join context of the models and of the optimizers that communicate.

    It is ddpsim's own if all of them are of ddpsim's engine, else torch's.
    """
    if training.join is None:
        return nullcontext()  # a join context alone changes what forwards communicate
    options = {
        "divide_by_initial_world_size": training.join.divide_by_initial_world_size,
        "throw_on_early_termination": training.join.throw_on_early_termination,
    }
    if training.optimizer.is_sharded:
        in_order_of_use = [each for pair in zip(models, optimizers, strict=True) for each in pair]
        return Join(in_order_of_use, **options)
    if len(models) == 1:
        joined: AbstractContextManager[object] = models[0].join(**options)
        return joined
    if isinstance(models[0], ddp.DistributedDataParallel):
        return ddp.Join(models, **options)
    return Join(list(models), **options)


def _snapshot_of_models(models: Sequence[Any], iteration: int | None) -> Snapshot:
    gradients = iteration is not None
    return join_model_snapshots(
        {f"{i}": snapshot(model.module, iteration, gradients=gradients) for i, model in enumerate(models)}
    )


def _sum_over_ranks(loss: Tensor) -> Tensor:
    total = loss.detach().reshape(1).clone()
    dist.all_reduce(total)
    return total
