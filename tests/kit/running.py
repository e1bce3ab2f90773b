"""To run a program or a training on the simulated group and read its trace; and gradients without an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpsim import Result, simulate
from ddpsim.ddp import DistributedDataParallel
from ddpsim.simulator.calls import Call, Phase
from ddpsim.simulator.events import EventKind
from tests.kit import networks, oracle
from tests.kit.training import Prepare, Training, assert_same, mean_square, ramp, seeded, train

Gradients = dict[str, "Tensor | None"]
RankLoss = Callable[[nn.Module, int], Tensor]
"""Of the wrapper, or the module alone, on a rank."""


def run(program: Callable[..., Any], world_size: int, *args: Any, **how: Any) -> Result:
    """Run the program on the simulated group; it must pass, without hazards, and leave the group's class as it was."""
    before = group_methods()
    result = simulate(program, world_size, args=args, **how)
    assert group_methods() == before
    result.raise_for_verdict()
    assert result.findings == ()
    return result


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


def group_methods() -> list[dict[str, Any]]:
    """What the classes of process groups have."""
    from ddpsim.simulator.process_group.group import SimulatedGroup

    return [dict(vars(kind)) for kind in (SimulatedGroup, dist.ProcessGroup)]


def check(
    training: Training,
    options: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    *,
    wrap: Callable[..., Any] = DistributedDataParallel,
    tolerance: float = 1e-12,
    meet: oracle.Meet | None = None,
    gradients: bool = True,
    **how: Any,
) -> Result:
    """Train on the simulated group and compare every rank with the oracle, and the layouts of the buckets."""
    result = run(train, training.world_size, training, options or {}, prepare, wrap, **how)
    counts = [len(own) for own in training.batches]
    for rank, wanted in enumerate(oracle.expected(training, meet=meet)):
        # A rank that joined early keeps the gradient of its last batch, or what shadowing wrote there: nobody uses it.
        has_gradients = gradients and counts[rank] == max(counts)
        assert_same(result.returns[rank], wanted, tolerance=tolerance, gradients=has_gradients)
        assert result.returns[rank].plan == result.returns[0].plan
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


# Gradients without an engine.


def gradients(module: nn.Module) -> Gradients:
    """Copies of the gradients that the parameters have now, dense."""
    return {
        name: None if p.grad is None else p.grad.detach().to_dense().clone() for name, p in module.named_parameters()
    }


def wrapped(build: Callable[[], nn.Module] = networks.multilayer, **options: Any) -> DistributedDataParallel:
    """A wrapper, of the same module on each rank."""
    return DistributedDataParallel(seeded(build), **options)


def loss(model: nn.Module, rank: int, number: int = 0) -> Tensor:
    """Of a batch of the rank's own."""
    return mean_square(model, ramp(rank, number))


def average(build: Callable[[], nn.Module], losses: Iterable[Callable[[nn.Module], Tensor]]) -> Gradients:
    """The average over ranks of the gradients of `losses[rank]`."""
    own = [_gradients_of(seeded(build), loss) for loss in losses]
    return oracle.average(own, len(own))


def _gradients_of(module: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Gradients:
    loss(module).backward()
    return gradients(module)


def expected(build: Callable[[], nn.Module], loss: RankLoss, ranks: Iterable[int] = (0, 1)) -> Gradients:
    """The average over ranks of the gradients that `loss(module, rank)` has on each."""
    return average(build, [partial(_on, loss, rank) for rank in ranks])


def _on(loss: RankLoss, rank: int, module: nn.Module) -> Tensor:
    return loss(module, rank)


def backwards(
    rank: int, build: Callable[[], nn.Module], losses: Sequence[RankLoss], options: Mapping[str, Any]
) -> tuple[DistributedDataParallel, list[Gradients]]:
    """The program of a rank: a wrapper, and its gradients after the backward of each loss, cleared before."""
    model = wrapped(build, **options)
    found = []
    for loss in losses:
        model.zero_grad()
        loss(model, rank).backward()
        found.append(gradients(model.module))
    return model, found


def check_backwards(
    build: Callable[[], nn.Module],
    *losses: RankLoss,
    options: Mapping[str, Any] | None = None,
    world_size: int = 2,
    tolerance: float = 0.0,
    **how: Any,
) -> Result:
    """Run one backward after the other, the same one twice if only one is given; compare each rank's gradients.

    They are to be the average of what every rank has on its own. Returns what `backwards` does, by rank.
    """
    losses = losses * 2 if len(losses) == 1 else losses
    result = run(backwards, world_size, build, losses, options or {}, **how)
    wanted = [expected(build, loss, range(world_size)) for loss in losses]
    for _, found in result.returns:
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance / 100)
    return result


def each_equals(result: Result, wanted: Gradients) -> None:
    """Every rank returned these gradients, or several times these."""
    for found in result.returns:
        for own in found if isinstance(found, (list, tuple)) else [found]:
            assert_equal(own, wanted)


def assert_equal(actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]) -> None:
    """To the last bit."""
    torch.testing.assert_close(dict(actual), dict(expected), rtol=0, atol=0)


# Small ones, for arithmetic that can be done in the head.


def linear(features: int = 2, outputs: int = 1) -> nn.Linear:
    """A layer whose weights are 1."""
    layer = nn.Linear(features, outputs, bias=False).double()
    nn.init.ones_(layer.weight)
    return layer


def row(*numbers: float) -> Tensor:
    """A batch of one row."""
    return torch.tensor([numbers], dtype=torch.float64)
