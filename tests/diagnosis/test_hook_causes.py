"""What a communication hook that does not call alike on all ranks is told, in either engine."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsim import ddp, simulate

ENGINES = pytest.mark.parametrize(
    "engine", [DistributedDataParallel, ddp.DistributedDataParallel], ids=["torch", "own"]
)
TWO_BUCKETS = {"bucket_cap_mb": 0.0004}
DECIDE = (
    "register the hook with the same options on every rank, and let it decide by what all know (the step, the bucket, "
    "what an all_reduce gave), not by values of one"
)


def network(*, normalised=False):
    torch.manual_seed(0)
    middle = torch.nn.BatchNorm1d(64) if normalised else torch.nn.ReLU()
    return torch.nn.Sequential(torch.nn.Linear(8, 64), middle, torch.nn.Linear(64, 1))


def found(engine, hook, *, odd=2, normalised=False, **options):
    """The one finding where `hook(is_odd, step, bucket)` reduces."""

    def program(rank):
        model = engine(network(normalised=normalised), **options)
        at = [0]
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket, rank == odd, at[0]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            at[0] = step
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    (finding,) = simulate(program, 4).findings
    return finding


def end(finding):
    cause, remedy = finding.text.splitlines()[-2:]
    return cause.removeprefix("  cause   "), remedy.removeprefix("  try     ")


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def skips_small(state, bucket, is_odd, step):
    if bucket.buffer().abs().max() < 1e-3:
        return done(bucket.buffer())
    return allreduce_hook(None, bucket)


def calls_once_more(state, bucket, is_odd, step):
    if is_odd:
        dist.all_reduce(torch.zeros(1))
    return allreduce_hook(None, bucket)


def averages(state, bucket, is_odd, step):
    return allreduce_hook(None, bucket)


@ENGINES
@pytest.mark.parametrize("options", [{}, TWO_BUCKETS], ids=["one bucket", "more buckets"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_hook_that_leaves_out_small_gradients(engine, options, normalised):
    def program(rank):
        model = engine(network(normalised=normalised), **options)
        model.register_comm_hook(None, lambda state, bucket: skips_small(state, bucket, False, 0))
        for _ in range(2):
            (model(torch.ones(4, 8)).sum() * (0.0 if rank == 2 else 1.0)).backward()

    (finding,) = simulate(program, 4).findings
    assert finding.ranks == (2,)
    cause, remedy = end(finding)
    assert cause.startswith("rank 2 went on without the call that the communication hook makes at test_hook_causes.py:")
    assert "the hook made none, or did not run" in cause
    assert remedy.startswith(DECIDE)


@ENGINES
@pytest.mark.parametrize("left_out", [0, 1])
def test_a_hook_that_leaves_out_one_bucket(engine, left_out):
    def hook(state, bucket, is_odd, step):
        leaves_out = is_odd and bucket.index() == left_out
        return done(bucket.buffer()) if leaves_out else allreduce_hook(None, bucket)

    finding = found(engine, hook, **TWO_BUCKETS)
    assert finding.ranks == (2,)
    cause, remedy = end(finding)
    assert "the communication hook" in cause
    assert "on rank 2" in cause or cause.startswith("rank 2")
    assert remedy.startswith(DECIDE)


@ENGINES
@pytest.mark.parametrize("normalised", [False, True])
def test_a_hook_that_calls_once_more_at_the_end_of_a_step(engine, normalised):
    def hook(state, bucket, is_odd, step):
        future = allreduce_hook(None, bucket)
        if is_odd and step == 0:
            dist.all_reduce(torch.zeros(1))
        return future

    finding = found(engine, hook, odd=1, normalised=normalised)
    assert finding.ranks == (1,)
    assert end(finding)[0].startswith("rank 1: the communication hook made another call than the others', or none, at ")


@ENGINES
def test_a_hook_that_calls_once_more(engine):
    finding = found(engine, calls_once_more, odd=1)
    assert (finding.code, finding.ranks) == ("mismatch.shape", (1,))
    cause, remedy = end(finding)
    assert cause.startswith("rank 1: the communication hook made another call than the others', or none, at test_hook_")
    assert remedy == DECIDE


@ENGINES
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_compression_that_starts_later_on_one_rank(engine, is_wrapped):
    def program(rank):
        model = engine(network())
        start = 3 if rank == 2 else 2
        state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=start)
        model.register_comm_hook(
            state, (lambda own, bucket: powerSGD_hook(own, bucket)) if is_wrapped else powerSGD_hook
        )
        for _ in range(5):
            model.zero_grad()
            model(torch.ones(4, 8)).sum().backward()

    (finding,) = simulate(program, 4).findings
    assert (finding.code, finding.ranks) == ("mismatch.shape", (2,))
    assert end(finding)[0].startswith("rank 2: the communication hook made another call than the others', or none, at ")


def chains_two(state, bucket, is_odd, step):
    """The same on every rank; the second call of a bucket comes when its first is done."""
    first = dist.all_reduce(torch.zeros(1), async_op=True)

    def go_on(future):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    return first.get_future().then(go_on).then(lambda future: future.value().wait()[0])


def waits_between_two(state, bucket, is_odd, step):
    dist.all_reduce(torch.zeros(1))
    return allreduce_hook(None, bucket)


def trained_on_three(hook, **options):
    def program(rank):
        model = DistributedDataParallel(network(), **options)
        model.register_comm_hook(None, hook)
        for _ in range(4):
            model(torch.ones(4, 8) * (rank + 1)).sum().backward()

    return simulate(program, 3)


def test_chains_of_several_buckets_blame_no_hook():
    (finding,) = trained_on_three(lambda _, bucket: chains_two(None, bucket, False, 0), **TWO_BUCKETS).findings
    assert finding.code == "mismatch.shape"
    cause, remedy = end(finding)
    assert cause.startswith("the communication hook's calls at test_hook_causes.py:")
    assert "are of different buckets" in cause
    assert "in the order in which the calls before them complete" in cause
    assert "rank" not in cause.replace("between ranks", "")
    assert remedy == "wait() in the hook before its next call, or make one bucket of all (bucket_cap_mb)"


def test_compression_alike_on_all_ranks_blames_no_rank():
    def program(rank):
        model = DistributedDataParallel(network(), **TWO_BUCKETS)
        state = PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.1)
        model.register_comm_hook(state, powerSGD_hook)
        for _ in range(4):
            model(torch.ones(4, 8) * (rank + 1)).sum().backward()

    (finding,) = simulate(program, 3).findings
    assert "are of different buckets" in end(finding)[0]


def test_chains_are_clean_by_each_remedy():
    assert trained_on_three(lambda _, bucket: chains_two(None, bucket, False, 0)).findings == ()
    assert trained_on_three(lambda _, bucket: waits_between_two(None, bucket, False, 0), **TWO_BUCKETS).findings == ()


@ENGINES
def test_a_chain_in_one_bucket_with_another_call_on_one_rank(engine):
    def hook(state, bucket, is_odd, step):
        def go_on(future):
            return dist.all_reduce(bucket.buffer()[1:] if is_odd else bucket.buffer(), async_op=True).get_future()

        first = dist.all_reduce(torch.zeros(1), async_op=True).get_future()
        return first.then(go_on).then(lambda future: future.value().wait()[0])

    finding = found(engine, hook)
    assert (finding.code, finding.ranks) == ("mismatch.shape", (2,))
    assert end(finding)[0].startswith("rank 2: the communication hook made another call than the others', or none, at ")


@ENGINES
@pytest.mark.parametrize("calls", [0, 2])
def test_a_hook_that_is_one_call_off_from_a_step_on(engine, calls):
    def hook(state, bucket, is_odd, step):
        futures = [allreduce_hook(None, bucket) for _ in range(calls if is_odd and step == 1 else 1)]
        return futures[-1] if futures else done(bucket.buffer())

    finding = found(engine, hook)
    assert (finding.code, finding.ranks) == ("mismatch.origin", (2,))
    ahead, behind = ("rank 2", "ranks 0, 1, 3") if calls == 0 else ("ranks 0, 1, 3", "rank 2")
    cause, remedy = end(finding)
    assert f"belongs to a later step on {ahead} than on {behind}: the hook left a call out on {ahead}" in cause
    assert cause.endswith(f"or made one more on {behind}, or a backward was left out on {ahead}")
    assert remedy.startswith(DECIDE)


@ENGINES
def test_a_backward_that_is_left_out_under_a_hook(engine):
    def program(rank):
        model = engine(network())
        model.register_comm_hook(None, allreduce_hook)
        for step in range(3):
            loss = model(torch.ones(4, 8)).sum()
            if rank != 2 or step != 1:
                loss.backward()

    (finding,) = simulate(program, 4).findings
    assert finding.ranks == (2,)
    assert end(finding)[0].endswith("or a backward was left out on rank 2")


@ENGINES
def test_a_hook_that_leaves_out_the_last_call(engine):
    def hook(state, bucket, is_odd, step):
        return done(bucket.buffer()) if is_odd and step == 2 else allreduce_hook(None, bucket)

    finding = found(engine, hook)
    assert (finding.code, finding.ranks) == ("deadlock.missing_rank", (2,))
    cause, remedy = end(finding)
    assert cause.startswith("rank 2 went on without the call that the communication hook makes at test_")
    assert remedy.startswith(DECIDE)


@ENGINES
def test_a_rank_without_input_under_a_hook_ran_out_of_it(engine):
    def program(rank):
        model = engine(network())
        model.register_comm_hook(None, allreduce_hook)
        for _ in range(2 if rank == 2 else 3):
            model(torch.ones(4, 8)).sum().backward()

    (finding,) = simulate(program, 4).findings
    assert finding.ranks == (2,)
    assert "ran out of input" in end(finding)[0]


@ENGINES
def test_a_hook_on_one_rank_only(engine):
    def program(rank):
        model = engine(network())
        if rank == 1:
            model.register_comm_hook(None, fp16_compress_hook)
        model(torch.ones(4, 8)).sum().backward()

    (finding,) = simulate(program, 4).findings
    assert (finding.code, finding.ranks) == ("mismatch.dtype", (1,))
    assert "register the same communication hook" in end(finding)[1]


@ENGINES
@pytest.mark.parametrize("hook", [averages, skips_small])
def test_hooks_that_call_alike_are_clean(engine, hook):
    def program(rank):
        model = engine(network(), **TWO_BUCKETS)
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket, False, 0))
        model(torch.ones(4, 8)).sum().backward()

    assert simulate(program, 4).findings == ()
