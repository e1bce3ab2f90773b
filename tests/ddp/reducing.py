"""What the tests of the reducer share: to run a program and read its trace, and gradients without an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpsim import Result, simulate
from ddpsim.ddp import DistributedDataParallel
from ddpsim.simulator.calls import Call, Phase
from ddpsim.simulator.events import EventKind
from tests.ddp_equivalence import oracle
from tests.ddp_equivalence.training import Trained, Training, assert_same, trained

TINY = 1e-5
"""MiB: a bucket is full after 10 bytes, so every parameter has its own."""

Prepare = Callable[[DistributedDataParallel], object]
Gradients = dict[str, "Tensor | None"]


def run(program: Callable[..., Any], world_size: int, *args: Any, **how: Any) -> Result:
    """Run the program on the simulated group; it must pass, and correct programs bring no hazards up."""
    result = simulate(program, world_size, args=args, **how)
    result.raise_for_verdict()
    assert result.findings == ()
    return result


# Reading a trace.


def calls(result: Result, phase: Phase, rank: int = 0) -> list[Call]:
    """The calls of one phase that a rank issued, in order."""
    return [call for call in _issued(result, rank) if call.origin.phase is phase]


def counts(result: Result, rank: int = 0) -> dict[str, int]:
    """How many calls a rank issued, by phase."""
    return dict(Counter(call.origin.phase.value for call in _issued(result, rank)))


def _issued(result: Result, rank: int) -> list[Call]:
    return [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.rank == rank]


def mark(text: str) -> None:
    """Leave a mark in the trace; see `timeline`."""
    dist.distributed_c10d._get_default_store().set(f"mark {text}", "")


def mark_gradients(module: nn.Module) -> None:
    """Leave a mark whenever a parameter has got its gradient. To be called before the module is wrapped."""
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: mark(name))


def timeline(result: Result, rank: int = 0) -> list[str]:
    """A rank's marks, and "bucket 0" and so on where it started one, in the order in which they happened."""
    found = []
    for event in result.trace:
        if event.rank != rank:
            continue
        if event.kind is EventKind.STORE and "mark " in event.text:
            found.append(event.text.partition("mark ")[2])
        if event.kind is EventKind.ISSUE and event.call.origin.phase is Phase.BUCKET:
            found.append(f"bucket {event.call.origin.bucket}")
    return found


# Gradients, and whole trainings, without an engine.


def gradients(module: nn.Module) -> Gradients:
    """Copies of the gradients that the parameters have now, dense."""
    return {
        name: None if p.grad is None else p.grad.detach().to_dense().clone() for name, p in module.named_parameters()
    }


def average(build: Callable[[], nn.Module], losses: Iterable[Callable[[nn.Module], Tensor]]) -> Gradients:
    """The average over ranks of the gradients of `losses[rank]`, each divided before they are summed in rank order.

    None where no rank has a gradient. `build` makes the same module on each call.
    """
    own = [_gradients_of(build(), loss) for loss in losses]
    averaged: Gradients = {}
    for name in own[0]:
        shares = [mine[name] / len(own) for mine in own if mine[name] is not None]
        averaged[name] = sum(shares[1:], shares[0]) if shares else None
    return averaged


def _gradients_of(module: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Gradients:
    loss(module).backward()
    return gradients(module)


def assert_equal(actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]) -> None:
    """To the last bit."""
    torch.testing.assert_close(dict(actual), dict(expected), rtol=0, atol=0)


def train(rank: int, training: Training, options: Mapping[str, Any], prepare: Prepare | None = None) -> Trained:
    """The program of a rank. Each starts from parameters of its own, so only the engine makes them equal."""
    torch.manual_seed(rank)
    module = training.build()
    model = DistributedDataParallel(module, **options)
    if prepare is not None:
        prepare(model)
    optimizer = training.optimizer(model)
    for iteration, batch in enumerate(training.batches[rank]):
        if training.clear_gradients and training.opens_step(iteration):
            optimizer.zero_grad(set_to_none=training.set_to_none)
        with nullcontext() if training.closes_step(iteration) else model.no_sync():
            training.loss(model, batch).backward()
        if training.closes_step(iteration):
            optimizer.step()
    return trained(module)


def check(
    training: Training,
    options: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    *,
    tolerance: float = 1e-12,
    meet: oracle.Meet | None = None,
    gradients: bool = True,
) -> Result:
    """Train on the simulated group and compare every rank with the oracle, which starts from rank 0's parameters."""
    result = run(train, training.world_size, training, options or {}, prepare)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = training.build()
    for actual, expected in zip(result.returns, oracle.train(training, model, meet=meet), strict=True):
        assert_same(actual, expected, tolerance=tolerance, gradients=gradients)
    return result
