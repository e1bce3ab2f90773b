"""What a communication hook that does not call alike on all ranks is told, in either engine."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsim import ddp, simulate
from ddpsim.simulator.diagnosis.advice import Cause
from tests.kit.futures import done

from .ending import end, ends_with

ENGINES = pytest.mark.parametrize(
    "engine", [DistributedDataParallel, ddp.DistributedDataParallel], ids=["torch", "own"]
)
TWO_BUCKETS = {"bucket_cap_mb": 0.0004}


def network(*, normalised=False):
    torch.manual_seed(0)
    middle = torch.nn.BatchNorm1d(64) if normalised else torch.nn.ReLU()
    return torch.nn.Sequential(torch.nn.Linear(8, 64), middle, torch.nn.Linear(64, 1))


def train(rank, engine, hook, *, odd=2, normalised=False, skips=(), scale=1.0, steps=3, state=None, **options):
    """Steps of a model that `hook(state, bucket, is_odd, step)` reduces; `skips` are backwards that the odd one leaves.

    `scale` multiplies the odd one's loss.
    """
    model = engine(network(normalised=normalised), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at = [0]
    model.register_comm_hook(state, lambda state, bucket: hook(state, bucket, rank == odd, at[0]))
    for step in range(steps):
        at[0] = step
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum()
        if rank != odd or step not in skips:
            (loss * (scale if rank == odd else 1.0)).backward()
        optimizer.step()


def found(*arguments, world_size=4, **options):
    (finding,) = simulate(lambda rank: train(rank, *arguments, **options), world_size).findings
    return finding


def averages(state, bucket, is_odd, step):
    return allreduce_hook(None, bucket)


def skips_small(state, bucket, is_odd, step):
    return done(bucket.buffer()) if bucket.buffer().abs().max() < 1e-3 else allreduce_hook(None, bucket)


def leaves_out(state, bucket, is_odd, step, *, index):
    return done(bucket.buffer()) if is_odd and bucket.index() == index else allreduce_hook(None, bucket)


def calls_once_more(state, bucket, is_odd, step):
    if is_odd:
        dist.all_reduce(torch.zeros(1))
    return allreduce_hook(None, bucket)


def calls_once_more_at_the_end(state, bucket, is_odd, step):
    future = allreduce_hook(None, bucket)
    if is_odd and step == 0:
        dist.all_reduce(torch.zeros(1))
    return future


def calls(state, bucket, is_odd, step, *, times, at):
    """So often in one step, where the others call once."""
    futures = [allreduce_hook(None, bucket) for _ in range(times if is_odd and step == at else 1)]
    return futures[-1] if futures else done(bucket.buffer())


def chains_two(state, bucket, is_odd, step, *, shortens=False):
    """The second call of a bucket comes when its first is done."""

    def go_on(future):
        buffer = bucket.buffer()[1:] if is_odd and shortens else bucket.buffer()
        return dist.all_reduce(buffer, async_op=True).get_future()

    first = dist.all_reduce(torch.zeros(1), async_op=True).get_future()
    return first.then(go_on).then(lambda future: future.value().wait()[0])


def waits_between_two(state, bucket, is_odd, step):
    dist.all_reduce(torch.zeros(1))
    return allreduce_hook(None, bucket)


def compresses(state, bucket, is_odd, step):
    return powerSGD_hook(state, bucket)


# --- what is told -----------------------------------------------------------------------------------------------------

LATER = "mismatch.origin"
ONE_OFF = {"ahead": "rank 2", "behind": "ranks 0, 1, 3"}
ONE_BEHIND = {"ahead": "ranks 0, 1, 3", "behind": "rank 2"}

# The hook, options of the training, what is found, the cause, and facts of it.
CASES = {
    **{
        f"small gradients, {options}": (skips_small, {"scale": 0.0, **options}, None, Cause.HOOK_MADE_NO_CALL, {})
        for options in ({}, {"normalised": True}, TWO_BUCKETS, {"normalised": True, **TWO_BUCKETS})
    },
    "once more": (calls_once_more, {}, "mismatch.shape", Cause.HOOK_CALLS_DIFFER, {}),
    "once more at the end": (calls_once_more_at_the_end, {}, None, Cause.HOOK_CALLS_DIFFER, {}),
    "once more, then buffers": (calls_once_more_at_the_end, {"normalised": True}, None, Cause.HOOK_CALLS_DIFFER, {}),
    "a chain": (partial(chains_two, shortens=True), {}, "mismatch.shape", Cause.HOOK_CALLS_DIFFER, {}),
    "one call less from a step on": (partial(calls, times=0, at=1), {}, LATER, Cause.HOOK_ONE_OFF, ONE_OFF),
    "one call more from a step on": (partial(calls, times=2, at=1), {}, LATER, Cause.HOOK_ONE_OFF, ONE_BEHIND),
    "a backward left out": (averages, {"skips": (1,)}, None, Cause.HOOK_ONE_OFF, ONE_OFF),
    "the last call": (partial(calls, times=0, at=2), {}, "deadlock.missing_rank", Cause.HOOK_MADE_NO_CALL, {}),
}


@ENGINES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_hook_that_calls_otherwise_on_one_rank(engine, case):
    hook, options, code, cause, facts = case
    finding = found(engine, hook, **options)
    assert finding.ranks == (2,)
    assert code in (None, finding.code)
    ends_with(finding, cause, **facts)
    assert "test_hook_causes.py:" in end(finding)[0] or "default_hooks.py:" in end(finding)[0]


@ENGINES
@pytest.mark.parametrize("index", [0, 1])
def test_a_hook_that_leaves_out_one_bucket(engine, index):
    finding = found(engine, partial(leaves_out, index=index), **TWO_BUCKETS)
    assert finding.ranks == (2,)
    cause, remedy = end(finding)
    assert "the communication hook" in cause
    assert "on rank 2" in cause or cause.startswith("rank 2")
    assert remedy.startswith(Cause.HOOK_CALLS_DIFFER.remedy)


def program_of(engine, register, *, steps=3):
    def program(rank):
        model = engine(network())
        register(model, rank)
        for _ in range(steps(rank) if callable(steps) else steps):
            model.zero_grad()
            model(torch.ones(4, 8)).sum().backward()

    return program


def compresses_later(model, rank, *, is_wrapped=False):
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3 if rank == 2 else 2)
    model.register_comm_hook(state, (lambda own, bucket: powerSGD_hook(own, bucket)) if is_wrapped else powerSGD_hook)


@ENGINES
@pytest.mark.parametrize(
    ("register", "steps", "code", "cause"),
    [
        (compresses_later, 5, "mismatch.shape", Cause.HOOK_CALLS_DIFFER),
        (partial(compresses_later, is_wrapped=True), 5, "mismatch.shape", Cause.HOOK_CALLS_DIFFER),
        (
            lambda model, rank: rank == 2 and model.register_comm_hook(None, fp16_compress_hook),
            1,
            "mismatch.dtype",
            Cause.HOOK_ON_SOME_RANKS,
        ),
        (
            lambda model, rank: model.register_comm_hook(None, allreduce_hook),
            lambda rank: 2 if rank == 2 else 3,
            "deadlock.missing_rank",
            Cause.RAN_OUT_OF_INPUT,
        ),
    ],
    ids=["compression starts later", "in a function", "only on one rank", "no input"],
)
def test_hooks_that_are_not_registered_alike_and_a_rank_without_input(engine, register, steps, code, cause):
    (finding,) = simulate(program_of(engine, register, steps=steps), 4).findings
    assert (finding.code, finding.ranks) == (code, (2,))
    ends_with(finding, cause)


def test_chains_of_several_buckets_blame_no_hook():
    finding = found(DistributedDataParallel, chains_two, odd=None, steps=4, world_size=3, **TWO_BUCKETS)
    assert finding.code == "mismatch.shape"
    ends_with(finding, Cause.HOOK_CHAINS_CROSS)


def test_calls_that_hooks_make_while_the_run_ends_are_no_second_mismatch():
    def waits_in_its_callback(group, bucket):
        first = dist.all_reduce(torch.zeros(1), async_op=True).get_future()
        return first.then(lambda _: dist.all_reduce(bucket.buffer(), async_op=True).get_future().wait()[0])

    def program(rank):
        layers = [torch.nn.Linear(64, 64) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
        model.register_comm_hook(None, waits_in_its_callback)
        for _ in range(2):
            model(torch.randn(4, 64)).sum().backward()

    (finding,) = simulate(program, 2).findings
    ends_with(finding, Cause.HOOK_CHAINS_CROSS)


def test_compression_alike_on_all_ranks_blames_no_rank():
    def program(rank):
        state = PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.1)
        train(rank, DistributedDataParallel, compresses, odd=None, steps=4, state=state, **TWO_BUCKETS)

    (finding,) = simulate(program, 3).findings
    ends_with(finding, Cause.HOOK_CHAINS_CROSS)


@ENGINES
@pytest.mark.parametrize(
    ("hook", "options"),
    [(averages, TWO_BUCKETS), (skips_small, TWO_BUCKETS), (waits_between_two, TWO_BUCKETS), (chains_two, {})],
)
def test_hooks_that_call_alike_are_clean(engine, hook, options):
    assert simulate(lambda rank: train(rank, engine, hook, odd=None, **options), 4).findings == ()
