"""The engine under test, on the simulated group: torch's DistributedDataParallel, unmodified, or ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Result, simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from tests.ddp_equivalence import oracle
from tests.ddp_equivalence.training import Trained, Training, assert_same, trained

Engine = TorchEngine | OwnEngine
Prepare = Callable[[Engine], object]

ENGINES: dict[str, type[Engine]] = {"torch": TorchEngine, "ddp": OwnEngine}
chosen: type[Engine] = TorchEngine
"""The fixture in conftest.py chooses."""


def DistributedDataParallel(module: nn.Module, **options: Any) -> Engine:
    """Wrap `module` in the chosen engine."""
    return chosen(module, **options)


def train(rank: int, training: Training, options: Mapping[str, Any], prepare: Prepare | None = None) -> Trained:
    """The program of a rank. Each starts from parameters of its own, so only DDP's synchronisation makes them equal."""
    torch.manual_seed(rank)
    return train_model(rank, training, training.build(), options, prepare)


def train_model(
    rank: int, training: Training, module: nn.Module, options: Mapping[str, Any], prepare: Prepare | None = None
) -> Trained:
    """Wrap `module`, train it on this rank's batches, and return what it has then."""
    model = DistributedDataParallel(module, **options)
    if prepare is not None:
        prepare(model)
    optimizer = training.optimizer(model)
    with _together(model, training):
        for iteration, batch in enumerate(training.batches[rank]):
            if training.clear_gradients and training.opens_step(iteration):
                optimizer.zero_grad(set_to_none=training.set_to_none)
            with nullcontext() if training.closes_step(iteration) else model.no_sync():
                training.loss(model, batch).backward()
            if training.closes_step(iteration):
                optimizer.step()
    return trained(module)


def _together(model: Engine, training: Training) -> AbstractContextManager[object]:
    if not training.is_joined:
        return nullcontext()  # making the join context already changes what forwards communicate
    return model.join(divide_by_initial_world_size=training.divide_by_initial_world_size)


def simulated(training: Training, options: Mapping[str, Any], prepare: Prepare | None = None, **how: Any) -> Result:
    """Run the training on the simulated group; the run must pass, and correct programs bring no hazards up."""
    result = simulate(train, training.world_size, args=(training, options, prepare), **how)
    result.raise_for_verdict()
    assert result.findings == ()
    return result


def check(
    training: Training,
    options: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    *,
    tolerance: float = 1e-12,
    meet: oracle.Meet | None = None,
    **how: Any,
) -> Result:
    """Train on the simulated group and compare every rank with the oracle."""
    result = simulated(training, options or {}, prepare, **how)
    expected = expectation(training, meet=meet)
    counts = [len(own) for own in training.batches]
    for rank, (actual, wanted) in enumerate(zip(result.returns, expected, strict=True)):
        # A rank that joined early keeps the gradient of its last batch, or what shadowing wrote there: nobody uses it.
        assert_same(actual, wanted, tolerance=tolerance, gradients=counts[rank] == max(counts))
    return result


def expectation(training: Training, *, meet: oracle.Meet | None = None) -> list[Trained]:
    """What the oracle says. It starts from rank 0's parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = training.build()
    return oracle.train(training, model, meet=meet)
