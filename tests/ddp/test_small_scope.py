"""Exhaustive small scope: every join of up to four ranks with up to three iterations each, under all options.

World sizes 1 to 4 have 4 + 16 + 64 + 256 = 340 ways to give each rank 0 to 3 iterations; times the divisor (2), a
parameter that is unused at times (2), a buffer (2), a communication hook (2) and throw_on_early_termination (2), these
are 10,880 cases, and this engine runs them all: none hangs, and every rank ends with the numbers of plain
training (tests/kit/oracle.py), having raised only where it must.

torch's engine runs 8,408 of them: it shadows the map of used parameters with what the joined rank has in that place.
After a batch that is what all had used in the step before; so a parameter that nobody uses may count as used, and get a
gradient of zeros where it should have none. Without a batch it is memory that was never initialised (`at::empty` in
`Reducer::initialize_local_used_map`). Left out are the cases with unused parameters where a rank never has a batch and
another has, or where somebody has joined and nobody uses the parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Verdict, simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.ddp import JoinError
from tests.kit import oracle
from tests.kit.training import TINY, Trained, Training, assert_same, trained

WORLD_SIZES = (1, 2, 3, 4)
MOST_ITERATIONS = 3
DECAY = 0.25
"""Of parameters that have a gradient: so having none differs from a gradient of zeros."""
HOOK_DIVISOR = 2.5
"""The communication hook's own, instead of the number of ranks."""
USES_EXTRA = ((1, 0, 0, 1), (0, 0, 0, 0), (0, 1, 0, 1))
"""Under `has_unused`, by iteration and rank: first some ranks use the second parameter, then none, then others."""
INPUTS = torch.rand(MOST_ITERATIONS, max(WORLD_SIZES), 2, generator=torch.Generator().manual_seed(3)).double() * 2 - 1

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]


@dataclass(frozen=True, slots=True)
class Options:
    """One combination of what may matter to a join."""

    divides_by_initial_size: bool
    has_unused: bool
    """A parameter is used by some ranks in some iterations only."""
    has_buffer: bool
    """Every forward changes a buffer, and depends on it."""
    has_hook: bool
    """A communication hook reduces the buckets."""
    throws: bool
    """throw_on_early_termination."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank has at the end."""

    steps: int
    is_refused: bool
    """The join raised."""
    trained: Trained


OPTIONS = tuple(Options(*values) for values in product((False, True), repeat=5))


def all_counts(world_size: int) -> tuple[tuple[int, ...], ...]:
    """0 to 3 iterations for each rank."""
    return tuple(product(range(MOST_ITERATIONS + 1), repeat=world_size))


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
    for iteration, uses in enumerate(USES_EXTRA):
        present = [iteration < count for count in counts]
        is_shadowed = any(present) and not all(present)
        if is_shadowed and (iteration == 0 or not any(map(min, present, uses))):
            return False
    return True


class Model(nn.Module):
    """`weight * (batch + seen) + extra * batch`, defined in another order than that of the gradients.

    The last number of a batch says whether `extra` is used.
    """

    def __init__(self, *, has_buffer):
        super().__init__()
        self.extra = nn.Parameter(torch.tensor([0.75, 0.25], dtype=torch.float64))
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64) if has_buffer else None)

    def forward(self, batch):
        batch, uses_extra = batch[:2], batch[2]
        level = batch
        if self.seen is not None:
            self.seen.div_(2).add_(batch)
            level = batch + self.seen
        output = self.weight * level
        return output + self.extra * batch if uses_extra else output


def training_of(counts, options):
    """What the oracle trains; the last number of a batch says whether it uses the second parameter."""

    def batch(iteration, rank):
        uses_extra = not options.has_unused or USES_EXTRA[iteration][rank]
        return torch.cat([INPUTS[iteration, rank], torch.tensor([float(uses_extra)])])

    return Training(
        partial(Model, has_buffer=options.has_buffer),
        tuple(tuple(batch(iteration, rank) for iteration in range(count)) for rank, count in enumerate(counts)),
        loss,
        is_joined=True,
        divide_by_initial_world_size=options.divides_by_initial_size,
        weight_decay=DECAY,
    )


def loss(model, batch):
    return model(batch).square().sum()


def expected(counts, options, *, hook_has_last_word):
    """What each rank must have at the end.

    With `throws` and counts that differ, every rank trains for as long as all have input, and then the join raises on
    every rank: before its next forward, or instead of leaving the join. Nothing is handed round.

    `hook_has_last_word`: with a communication hook, what gradients are divided by is the hook's business alone, as in
    torch; else the hook takes the place of the division by all ranks, and gets what makes up for those that joined.
    """

    def meet(gradients, divisor):
        if options.has_hook:
            divisor = HOOK_DIVISOR * (1 if hook_has_last_word else divisor / len(counts))
        return oracle.average(gradients, divisor)

    is_refused = options.throws and len(set(counts)) > 1
    steps = (min(counts),) * len(counts) if is_refused else counts
    training = training_of(steps, options)
    ends = oracle.train(training, training.build(), meet=meet, hands_round=not is_refused)
    return [Outcome(own, is_refused, end) for own, end in zip(steps, ends, strict=True)]


def divide_by_its_own(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda future: future.value()[0] / HOOK_DIVISOR)


def train(rank, counts, options, engine):
    # Every parameter has a bucket of its own after the first backward, in the order of the gradients.
    model = Model(has_buffer=options.has_buffer)
    wrapped = engine.wrap(model, init_sync=False, bucket_cap_mb=TINY, find_unused_parameters=options.has_unused)
    if options.has_hook:
        wrapped.register_comm_hook(None, divide_by_its_own)
    training = training_of(counts, options)
    optimizer = training.optimizer(model)
    steps, is_refused = 0, False
    try:
        with wrapped.join(options.divides_by_initial_size, throw_on_early_termination=options.throws):
            for batch in training.batches[rank]:
                optimizer.zero_grad()
                loss(wrapped, batch).backward()
                optimizer.step()
                steps += 1
    except engine.refusal as error:
        if engine.words not in str(error):
            raise
        is_refused = True
    return Outcome(steps, is_refused, trained(model))


def train_all(rank, cases, options, engine, under_way):
    outcomes = []
    for counts in cases:
        under_way[rank] = counts
        outcomes.append(train(rank, counts, options, engine))
    return outcomes


def cases_of(engine: Engine, world_size: int, options: Options):
    return [counts for counts in all_counts(world_size) if engine.supports(counts, options)]


def parameters():
    """Engine, world size and two of the options; of our engine by default joins of two ranks, each option once."""
    for name, size, has_unused, by_initial_size in product(ENGINES, WORLD_SIZES, (False, True), (False, True)):
        is_always = size == 1 or ((name, size) == ("ddp", 2) and has_unused is by_initial_size)
        marks = () if is_always else (pytest.mark.tier("nightly"),)
        words = "unused" if has_unused else "all-used", "by-all" if by_initial_size else "by-present"
        yield pytest.param(name, size, has_unused, by_initial_size, marks=marks, id="-".join((name, str(size), *words)))


@pytest.mark.parametrize(("name", "world_size", "has_unused", "by_initial_size"), list(parameters()))
def test_every_join(name, world_size, has_unused, by_initial_size):
    engine = ENGINES[name]
    for options in OPTIONS:
        if (options.has_unused, options.divides_by_initial_size) != (has_unused, by_initial_size):
            continue
        cases = cases_of(engine, world_size, options)
        under_way: dict[int, object] = {}
        result = simulate(train_all, world_size, args=(cases, options, engine, under_way))
        assert result.verdict is Verdict.PASS, f"{under_way} {options}\n{result}"
        for counts, *outcomes in zip(cases, *result.returns, strict=True):
            wanted = expected(counts, options, hook_has_last_word=name == "torch")
            for rank, outcome in enumerate(outcomes):
                case = f"world size {world_size}, counts {counts}, {options}, rank {rank}: "
                assert (outcome.steps, outcome.is_refused) == (wanted[rank].steps, wanted[rank].is_refused), case
                assert_same(outcome.trained, wanted[rank].trained, gradients=False, what=case)


@pytest.mark.parametrize(("name", "count"), [("ddp", 10_880), ("torch", 8_408)])
def test_how_many_cases_there_are(name, count):
    assert sum(len(cases_of(ENGINES[name], size, options)) for size in WORLD_SIZES for options in OPTIONS) == count
