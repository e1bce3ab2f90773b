"""Exhaustive small scope: every join of up to four ranks with up to three iterations each, under all options.

World sizes 1 to 4 have 4 + 16 + 64 + 256 = 340 ways to give each rank 0 to 3 iterations; times the divisor (2), a
parameter that is unused at times (2), a buffer (2), a communication hook (2) and throw_on_early_termination (2), these
are 10,880 cases, and this engine runs them all: none hangs, and every rank ends with the numbers of the oracle in
small_scope_cases.py, having raised only where it must.

torch's engine runs 8,408 of them: it shadows the map of used parameters with what the joined rank has in that place.
After a batch that is what all had used in the step before; so a parameter that nobody uses may count as used, and get a
gradient of zeros where it should have none. Without a batch it is memory that was never initialised (`at::empty` in
`Reducer::initialize_local_used_map`). Left out are the cases with unused parameters where a rank never has a batch and
another has, or where somebody has joined and nobody uses the parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Verdict, simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.ddp import JoinError
from tests.ddp.small_scope_cases import (
    BATCHES,
    DECAY,
    EXTRA,
    HOOK_DIVISOR,
    LEARNING_RATE,
    MOST_ITERATIONS,
    OPTIONS,
    USES_EXTRA,
    WEIGHT,
    WORLD_SIZES,
    Options,
    Outcome,
    all_counts,
    expected,
)

ONE_PARAMETER_MB = 1e-5
INPUTS = torch.from_numpy(BATCHES)

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]


@dataclass(frozen=True, slots=True)
class Engine:
    wrap: Callable[..., Any]
    refusal: type[Exception]
    words: str
    """Of a refusal."""

    def supports(self, counts, options):
        is_whole = not options.has_unused or options.throws
        return self.wrap is OwnEngine or is_whole or shadows_a_right_map(counts)


ENGINES = {
    "ddp": Engine(OwnEngine, JoinError, "ran out of input"),
    "torch": Engine(TorchEngine, RuntimeError, "exhausted"),
}


def shadows_a_right_map(counts):
    """Whether all ranks had a batch, and whenever some have joined, another one uses the second parameter."""
    present = np.array(counts) > np.arange(MOST_ITERATIONS)[:, None]
    uses = (present & USES_EXTRA[:, : len(counts)]).any(axis=1)
    is_shadowed = present.any(axis=1) & ~present.all(axis=1)
    return not is_shadowed[0] and not (is_shadowed & ~uses).any()


class Model(nn.Module):
    """`weight * (batch + seen) + extra * batch`, defined in another order than that of the gradients."""

    def __init__(self, *, has_buffer):
        super().__init__()
        self.extra = nn.Parameter(torch.tensor(EXTRA, dtype=torch.float64))
        self.weight = nn.Parameter(torch.tensor(WEIGHT, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64) if has_buffer else None)

    def forward(self, batch, *, uses_extra):
        level = batch
        if self.seen is not None:
            self.seen.div_(2).add_(batch)
            level = batch + self.seen
        output = self.weight * level
        return output + self.extra * batch if uses_extra else output

    def numbers(self):
        return (*self.weight.tolist(), *self.extra.tolist(), *([0.0, 0.0] if self.seen is None else self.seen.tolist()))


def divide_by_its_own(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda future: future.value()[0] / HOOK_DIVISOR)


def train(rank, counts, options, engine):
    # Every parameter has a bucket of its own after the first backward, in the order of the gradients.
    model = Model(has_buffer=options.has_buffer)
    wrapped = engine.wrap(
        model, init_sync=False, bucket_cap_mb=ONE_PARAMETER_MB, find_unused_parameters=options.has_unused
    )
    if options.has_hook:
        wrapped.register_comm_hook(None, divide_by_its_own)
    steps, is_refused = 0, False
    try:
        with wrapped.join(options.divides_by_initial_size, throw_on_early_termination=options.throws):
            for iteration in range(counts[rank]):
                uses_extra = bool(USES_EXTRA[iteration, rank]) or not options.has_unused
                model.weight.grad = model.extra.grad = None
                wrapped(INPUTS[iteration, rank], uses_extra=uses_extra).square().sum().backward()
                step(model)
                steps += 1
    except engine.refusal as error:
        if engine.words not in str(error):
            raise
        is_refused = True
    return Outcome(steps, is_refused, model.numbers())


def step(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= LEARNING_RATE * (parameter.grad + DECAY * parameter)


def train_all(rank, cases, options, engine, under_way):
    outcomes = []
    for counts in cases:
        under_way[rank] = counts
        outcomes.append(train(rank, counts, options, engine))
    return outcomes


def cases_of(engine: Engine, world_size: int, options: Options):
    return [counts for counts in all_counts(world_size) if engine.supports(counts, options)]


@pytest.mark.parametrize("by_initial_size", [False, True], ids=["by-present", "by-all"])
@pytest.mark.parametrize("has_unused", [False, True], ids=["all-used", "unused"])
@pytest.mark.parametrize(
    "world_size",
    [1, 2, pytest.param(3, marks=pytest.mark.tier("ci")), pytest.param(4, marks=pytest.mark.tier("nightly"))],
)
@pytest.mark.parametrize("name", ENGINES)
def test_every_join(name, world_size, has_unused, by_initial_size):
    engine = ENGINES[name]
    for options in OPTIONS:
        if (options.has_unused, options.divides_by_initial_size) != (has_unused, by_initial_size):
            continue
        cases = cases_of(engine, world_size, options)
        wanted = expected(world_size, options, hook_has_last_word=name == "torch")
        under_way: dict[int, object] = {}
        result = simulate(train_all, world_size, args=(cases, options, engine, under_way))
        assert result.verdict is Verdict.PASS, f"{under_way} {options}\n{result}"
        for counts, *outcomes in zip(cases, *result.returns, strict=True):
            for rank, outcome in enumerate(outcomes):
                assert outcome.is_close(wanted[counts][rank]), (
                    f"world size {world_size}, counts {counts}, {options}, rank {rank}:\n"
                    f"it has      {outcome}\nexpected is {wanted[counts][rank]}"
                )


@pytest.mark.parametrize(("name", "count"), [("ddp", 10_880), ("torch", 8_408)])
def test_how_many_cases_there_are(name, count):
    assert sum(len(cases_of(ENGINES[name], size, options)) for size in WORLD_SIZES for options in OPTIONS) == count
