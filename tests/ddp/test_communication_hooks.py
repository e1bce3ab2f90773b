"""Communication hooks: torch's own, unmodified; one's own; and those that return something else than they should.

How whole trainings with torch's hooks come out is tested for both engines in tests/ddp_equivalence.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel, UsageError
from ddpsim.simulator.calls import Phase
from tests.kit import networks
from tests.kit.running import TINY, assert_equal, average, calls, gradients, run
from tests.kit.training import mean_square

OPTIONS = pytest.mark.parametrize(
    "options",
    [{}, {"bucket_cap_mb": TINY}, {"gradient_as_bucket_view": False}, {"gradient_as_bucket_view": True}],
    ids=str,
)
pytestmark = pytest.mark.filterwarnings("ignore:`TorchScript` support for functional optimizers:DeprecationWarning")


def batch(rank):
    return torch.linspace(-1, 1 + rank, 8, dtype=torch.float64).view(2, 4)


def seeded(dtype=torch.float64):
    torch.manual_seed(0)
    return networks.multilayer().to(dtype)


def hooked(rank, hook, state=None, options=None, *, steps=2, dtype=torch.float64, engine=DistributedDataParallel):
    """Gradients after the last of some steps, cleared before each."""
    module = seeded(dtype)
    model = engine(module, **(options or {}))
    # torch refuses bfloat16 on a CPU by the hook's name, so it gets another.
    model.register_comm_hook(state() if callable(state) else state, lambda state, bucket: hook(state, bucket))
    for _ in range(steps):
        module.zero_grad()
        mean_square(model, batch(rank).to(dtype)).backward()
    return gradients(module)


def own_gradients(rank):
    with torch.random.fork_rng():
        return average(seeded, [lambda module: mean_square(module, batch(rank))])


def compressed(dtype, world_size):
    """Each rank's gradients are rounded, then divided, and added in rank order, rounding each time."""
    own = [own_gradients(rank) for rank in range(world_size)]
    shares = [{name: gradient.to(dtype) / world_size for name, gradient in mine.items()} for mine in own]
    return {name: sum((mine[name] for mine in shares[1:]), shares[0][name]).double() for name in own[0]}


# torch's hooks.


@OPTIONS
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("hook", "dtype"),
    [
        (allreduce_hook, torch.float64),
        (fp16_compress_hook, torch.half),
        (bf16_compress_hook, torch.bfloat16),
        (fp16_compress_wrapper(allreduce_hook), torch.half),
        (bf16_compress_wrapper(allreduce_hook), torch.bfloat16),
    ],
    ids=["allreduce", "fp16", "bf16", "fp16 wrapper", "bf16 wrapper"],
)
def test_averaging_hooks(hook, dtype, world_size, options):
    result = run(hooked, world_size, hook, None, options)
    for found in result.returns:
        assert_equal(found, compressed(dtype, world_size))
    assert {call.signature.dtype for call in calls(result, Phase.BUCKET)} == {str(dtype).removeprefix("torch.")}


@OPTIONS
def test_noop(options):
    result = run(hooked, 2, noop_hook, None, options)
    for rank, found in enumerate(result.returns):
        assert_equal(found, own_gradients(rank))
    assert calls(result, Phase.BUCKET) == []


def power_state():
    return PowerSGDState(None, matrix_approximation_rank=5, start_powerSGD_iter=2, min_compression_rate=0)


def test_power_sgd_with_as_many_columns_as_the_matrices():
    # P then spans them, so that the approximation is the average, up to rounding. torch's engine cannot do this.
    result = run(partial(hooked, steps=5), 3, powerSGD_hook, power_state, {"find_unused_parameters": True})
    for found in result.returns:
        torch.testing.assert_close(found, compressed(torch.float64, 3), rtol=1e-9, atol=1e-9)
        assert_equal(found, result.returns[0])


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(
    "hook",
    [powerSGD_hook, fp16_compress_wrapper(powerSGD_hook), bf16_compress_wrapper(powerSGD_hook)],
    ids=["plain", "fp16 wrapper", "bf16 wrapper"],
)
def test_power_sgd_that_compresses_is_torchs(hook, columns):
    def state():
        return PowerSGDState(None, matrix_approximation_rank=columns, start_powerSGD_iter=2, min_compression_rate=0)

    ours, theirs = (
        run(partial(hooked, steps=6, engine=engine), 2, hook, state, {"static_graph": True})
        for engine in (DistributedDataParallel, TorchDistributedDataParallel)
    )
    for mine, wanted in zip(ours.returns, theirs.returns, strict=True):
        assert_equal(mine, wanted)


def test_batched_power_sgd_does_what_it_does_under_torchs_engine():
    # In torch 2.13 it raises in the first step that compresses: it orthogonalizes a matrix as if it were a batch.
    ours, theirs = (
        simulate(partial(hooked, steps=4, engine=engine), 2, args=(batched_powerSGD_hook, power_state))
        for engine in (DistributedDataParallel, TorchDistributedDataParallel)
    )
    assert {rank: type(error) for rank, error in ours.errors.items()} == {
        rank: type(error) for rank, error in theirs.errors.items()
    }
    for rank, error in ours.errors.items():
        assert str(error).splitlines()[:1] == str(theirs.errors[rank]).splitlines()[:1]
    for rank in {0, 1} - ours.errors.keys():
        assert_equal(ours.returns[rank], theirs.returns[rank])


def test_batched_power_sgd_before_it_compresses():
    for found in run(hooked, 2, batched_powerSGD_hook, power_state).returns:
        assert_equal(found, compressed(torch.float64, 2))


@pytest.mark.parametrize(
    "hook", [quantization_hooks.quantization_pertensor_hook, quantization_hooks.quantization_perchannel_hook]
)
def test_quantization_does_what_it_does_under_torchs_engine(hook):
    # torch 2.13's takes the future of an all_gather for NCCL's, and fails on a CPU; later ones average 8-bit gradients.
    ours, theirs = (
        simulate(partial(hooked, dtype=torch.float32, steps=1, engine=engine), 2, args=(hook,))
        for engine in (DistributedDataParallel, TorchDistributedDataParallel)
    )
    assert sorted(ours.errors) == sorted(theirs.errors)
    for rank in {0, 1} - ours.errors.keys():
        assert_equal(ours.returns[rank], theirs.returns[rank])


# One's own.


def test_what_a_hook_gets():
    seen = []

    def hook(state, bucket):
        state.append(bucket.index())
        seen.append(bucket)
        gradients, parameters = bucket.gradients(), bucket.parameters()
        assert [g.shape for g in gradients] == [p.shape for p in parameters]
        assert bucket.buffer().dim() == 1
        assert all(g.untyped_storage().data_ptr() == bucket.buffer().untyped_storage().data_ptr() for g in gradients)
        assert sum(g.numel() for g in gradients) == bucket.buffer().numel()
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def program(rank):
        module, state = seeded(), []
        model = DistributedDataParallel(module, bucket_cap_mb=TINY)
        model.register_comm_hook(state, hook)
        mean_square(model, batch(rank)).backward()
        return state, gradients(module)

    for state, found in run(program, 2).returns:
        assert state == [0, 1, 2, 3, 4, 5]
        summed = {name: 2 * gradient for name, gradient in compressed(torch.float64, 2).items()}
        assert_equal(found, summed)  # the engine does not divide: that is the hook's task
    assert [bucket.is_last() for bucket in seen[:6]] == [False] * 5 + [True]
    assert all(isinstance(bucket.buffer(), torch.Tensor) for bucket in seen)


def test_a_chain_of_thens():
    def hook(state, bucket):
        flat = bucket.buffer().div_(2)
        rounded = flat.half()
        work = dist.all_reduce(rounded, async_op=True)

        def restore(future):
            return future.value()[0].to(flat.dtype)

        def into_place(future):
            flat.copy_(future.value())
            return flat

        return work.get_future().then(restore).then(into_place)

    for found in run(hooked, 2, hook).returns:
        for name, gradient in compressed(torch.half, 2).items():
            torch.testing.assert_close(found[name], gradient, rtol=2e-3, atol=1e-4)


def test_two_collectives_in_a_chain():
    def hook(state, bucket):
        flat = bucket.buffer()
        gathered = [torch.empty_like(flat) for _ in range(2)]
        count = torch.ones(1, dtype=flat.dtype)

        def counted(future):
            return dist.all_gather(gathered, flat, async_op=True).get_future().wait()

        def average_of(future):
            return sum(gathered) / count

        return dist.all_reduce(count, async_op=True).get_future().then(counted).then(average_of)

    for found in run(hooked, 2, hook).returns:
        assert_equal(found, compressed(torch.float64, 2))


@pytest.mark.parametrize("as_list", [False, True])
def test_a_future_that_is_done_already(as_list):
    def hook(state, bucket):
        future = torch.futures.Future()
        result = bucket.buffer() * 3
        future.set_result([result] if as_list else result)
        return future

    for rank, found in enumerate(run(hooked, 2, hook).returns):
        assert_equal(found, {name: 3 * gradient for name, gradient in own_gradients(rank).items()})


def test_set_buffer():
    # As torch's wrappers do: the inner hook works on what the outer one put in.
    def outer(state, bucket):
        bucket.set_buffer(bucket.buffer() * 2)
        return allreduce_hook(state, bucket)

    for found in run(hooked, 2, outer).returns:
        assert_equal(found, {name: 2 * gradient for name, gradient in compressed(torch.float64, 2).items()})


def test_gradients_are_views_of_what_was_set():
    def hook(state, bucket):
        before = bucket.gradients()
        bucket.set_buffer(bucket.buffer().float())
        after = bucket.gradients()
        assert all(torch.equal(new, old.float()) for new, old in zip(after, before, strict=True))
        assert [new.stride() for new in after] == [old.stride() for old in before]
        after[0].fill_(7)
        assert bucket.buffer()[: after[0].numel()].eq(7).all()
        return noop_hook(None, bucket)

    def program(rank):
        module = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last).double()
        model = DistributedDataParallel(module)
        model.register_comm_hook(None, hook)
        model(torch.ones(1, 2, 3, 3, dtype=torch.float64)).sum().backward()
        return module.bias.grad.tolist()  # the last defined comes first

    assert run(program, 1).returns == ([7.0] * 3,)


def test_a_hook_for_sparse_gradients():
    def build():
        torch.manual_seed(0)
        return nn.Embedding(5, 2, sparse=True)

    def program(rank):
        module = build()
        model = DistributedDataParallel(module)
        model.register_comm_hook(None, hook)
        for _ in range(2):
            module.zero_grad()
            model(torch.tensor([rank, 4])).pow(2).sum().backward()
        return gradients(module)

    def hook(state, bucket):
        assert bucket.buffer().is_sparse
        return allreduce_hook(state, bucket)

    with torch.random.fork_rng():
        wanted = average(build, [lambda module, r=r: module(torch.tensor([r, 4])).pow(2).sum() for r in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


# Bad ones.


def done(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future


BAD = {
    "a tensor": (lambda flat: flat, r"returned Tensor, expected a torch\.futures\.Future of the reduced flat tensor: "),
    "nothing": (lambda flat: None, r"returned NoneType, expected a torch\.futures\.Future "),
    "another shape": (
        lambda flat: done(flat[1:]),
        r"gave torch\.float64\[50\] for bucket 0, expected the reduced gradients as torch\.float64\[51\]: ",
    ),
    "another dtype": (
        lambda flat: done(flat.half()),
        r"gave torch\.float16\[51\] for bucket 0, expected the reduced gradients as torch\.float64\[51\]: decompress",
    ),
    "a future of text": (lambda flat: done("text"), r"gave str for bucket 0, expected the reduced gradients as "),
    "a future of two": (lambda flat: done([flat, flat]), r"gave list for bucket 0, expected the reduced gradients as "),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_hook_that_returns_something_else(kind):
    make, text = BAD[kind]

    def bad_hook(state, bucket):
        return make(bucket.buffer())

    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        model.register_comm_hook(None, bad_hook)
        with pytest.raises(UsageError, match=rf"^communication hook \S*bad_hook {text}") as raised:
            mean_square(model, batch(rank)).backward()
        assert "\n" not in str(raised.value)

    run(program, 2)


def test_a_hook_that_is_none():
    def program(rank):
        model = DistributedDataParallel(seeded())
        with pytest.raises(UsageError, match=r"^hook is 3, expected a callable of \(state, bucket\) that returns a "):
            model.register_comm_hook(None, 3)

    run(program, 1)


def test_a_second_registration():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        model.register_comm_hook(None, allreduce_hook)
        with pytest.raises(UsageError, match=r"^hook is a second communication hook, expected one per model: "):
            model.register_comm_hook(None, noop_hook)
        mean_square(model, batch(rank)).backward()
        return gradients(module)

    for found in run(program, 2).returns:
        assert_equal(found, compressed(torch.float64, 2))


def test_a_registration_between_forward_and_backward():
    # The forward has decided already that the engine divides; the hook would do it again.
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        loss = mean_square(model, batch(rank))
        with pytest.raises(UsageError, match=r"^a communication hook registered between a forward and its backward, "):
            model.register_comm_hook(None, allreduce_hook)
        loss.backward()
        first = gradients(module)
        module.zero_grad()
        model.register_comm_hook(None, allreduce_hook)
        mean_square(model, batch(rank)).backward()
        return first, gradients(module)

    for found in run(program, 2).returns:
        for each in found:
            assert_equal(each, compressed(torch.float64, 2))


def test_a_hook_that_raises():
    def hook(state, bucket):
        raise KeyError("mine")

    def program(rank):
        model = DistributedDataParallel(seeded())
        model.register_comm_hook(None, hook)
        with pytest.raises(KeyError, match="mine"):
            mean_square(model, batch(rank)).backward()

    run(program, 2)
