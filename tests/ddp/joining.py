"""What the tests of join share: programs that train inside one, and what a run of theirs shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpsim import Result, simulate
from ddpsim.ddp import DistributedDataParallel, Join, JoinError
from tests.ddp_equivalence import oracle
from tests.ddp_equivalence.training import Trained, Training, assert_same, trained

Prepare = Callable[[DistributedDataParallel], object]


def run(program: Callable[..., Any], world_size: int, *args: Any, **how: Any) -> Result:
    """Run the program on the simulated group; it must pass, without hazards, and leave the group's class as it was."""
    before = group_methods()
    result = simulate(program, world_size, args=args, **how)
    assert group_methods() == before
    result.raise_for_verdict()
    assert result.findings == ()
    return result


def group_methods() -> list[dict[str, Any]]:
    """What the classes of process groups have."""
    from ddpsim.simulator.process_group.group import SimulatedGroup

    return [dict(vars(kind)) for kind in (SimulatedGroup, dist.ProcessGroup)]


def failing(program: Callable[..., Any], world_size: int, *args: Any) -> dict[int, str]:
    """Run a program all of whose ranks must raise; return "type: text" by rank."""
    before = group_methods()
    result = simulate(program, world_size, args=args)
    assert group_methods() == before
    assert sorted(result.errors) == list(range(world_size)), str(result)
    assert {finding.code for finding in result.findings} <= {"rank_error"}, str(result)
    texts = {rank: f"{type(error).__name__}: {error}" for rank, error in result.errors.items()}
    assert not any("\n" in text for text in texts.values())
    return texts


def train(
    rank: int, training: Training, options: Mapping[str, Any], prepare: Prepare | None = None
) -> tuple[Trained, tuple[tuple[str, ...], ...]]:
    """Train inside a join; return what came of it, and the layout of the buckets."""
    torch.manual_seed(rank)
    module = training.build()
    model = DistributedDataParallel(module, **options)
    if prepare is not None:
        prepare(model)
    optimizer = training.optimizer(model)
    with model.join(training.divide_by_initial_world_size):
        steps(model, optimizer, training, training.batches[rank])
    return trained(module), model.reducer.plan


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, training: Training, batches: Sequence[Tensor]) -> None:
    """The loop of a rank."""
    for iteration, batch in enumerate(batches):
        if training.opens_step(iteration):
            optimizer.zero_grad()
        with nullcontext() if training.closes_step(iteration) else model.no_sync():  # type: ignore[operator]
            training.loss(model, batch).backward()
        if training.closes_step(iteration):
            optimizer.step()


def check(
    training: Training,
    options: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    *,
    meet: oracle.Meet | None = None,
) -> Result:
    """Train inside a join, and compare every rank with plain training, which starts from rank 0's parameters."""
    result = run(train, training.world_size, training, options or {}, prepare)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = training.build()
    counts = [len(own) for own in training.batches]
    for rank, wanted in enumerate(oracle.train(training, model, meet=meet)):
        actual, plan = result.returns[rank]
        assert_same(actual, wanted, gradients=counts[rank] == max(counts))
        assert plan == result.returns[0][1]
    return result


def linear(features: int = 2, outputs: int = 1) -> nn.Linear:
    """A layer whose weights are 1."""
    layer = nn.Linear(features, outputs, bias=False).double()
    nn.init.ones_(layer.weight)
    return layer


def row(*numbers: float) -> Tensor:
    """A batch of one row."""
    return torch.tensor([numbers], dtype=torch.float64)


__all__ = ["Join", "JoinError", "check", "failing", "group_methods", "linear", "row", "run", "steps", "train"]
