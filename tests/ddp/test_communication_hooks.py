"""Communication hooks: torch's own, unmodified; one's own; and those that return something else than they should.

How whole trainings with torch's hooks come out is tested for both engines in tests/ddp_equivalence.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

from ddpsim.ddp import DistributedDataParallel, UsageError
from ddpsim.simulator.calls import Phase
from tests.kit import networks
from tests.kit.futures import done
from tests.kit.rows import rows
from tests.kit.running import assert_equal, calls, each_equals, expected, gradients, loss, run, wrapped
from tests.kit.training import TINY


def hooked(rank, hook, state=None, steps=2, **options):
    """Gradients after the last of some steps, cleared before each."""
    model = wrapped(**options)
    model.register_comm_hook(state, hook)
    for _ in range(steps):
        model.zero_grad()
        loss(model, rank).backward()
    return gradients(model.module)


def averaged(factor=1):
    return {name: factor * gradient for name, gradient in expected(networks.multilayer, loss).items()}


# torch's hooks: test_equals_torch.py has more.


@pytest.mark.parametrize(("hook", "dtype"), [(allreduce_hook, "float64"), (fp16_compress_hook, "float16")])
def test_what_a_hook_makes_of_a_bucket_travels(hook, dtype):
    assert {call.signature.dtype for call in calls(run(hooked, 2, hook), Phase.BUCKET)} == {dtype}


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
        state = []
        return state, hooked(rank, hook, state, steps=1, bucket_cap_mb=TINY)

    for state, found in run(program, 2).returns:
        assert state == [0, 1, 2, 3, 4, 5]
        assert_equal(found, averaged(2))  # the engine does not divide: that is the hook's task
    assert [bucket.is_last() for bucket in seen[:6]] == [False] * 5 + [True]
    assert all(isinstance(bucket.buffer(), torch.Tensor) for bucket in seen)


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

    each_equals(run(hooked, 2, hook), averaged())


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
    def program(rank):
        model = wrapped(build)
        model.register_comm_hook(None, hook)
        for _ in range(2):
            model.zero_grad()
            used(model, rank).backward()
        return gradients(model.module)

    def build():
        return nn.Embedding(5, 2, sparse=True)

    def used(module, rank):
        return module(torch.tensor([rank, 4])).pow(2).sum()

    def hook(state, bucket):
        assert bucket.buffer().is_sparse
        return allreduce_hook(state, bucket)

    each_equals(run(program, 2), expected(build, used))


# Bad ones.


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


@rows("kind", BAD)
def test_a_hook_that_returns_something_else(kind):
    make, text = BAD[kind]

    def bad_hook(state, bucket):
        return make(bucket.buffer())

    def program(rank):
        with pytest.raises(UsageError, match=rf"^communication hook \S*<locals>\.bad_hook {text}") as raised:
            hooked(rank, bad_hook)
        assert "\n" not in str(raised.value)

    run(program, 2)


def test_a_hook_that_is_none():
    def program(rank):
        with pytest.raises(UsageError, match=r"^hook is 3, expected a callable of \(state, bucket\) that returns a "):
            hooked(rank, 3)

    run(program, 1)


def test_a_second_registration():
    def program(rank):
        model = wrapped()
        model.register_comm_hook(None, allreduce_hook)
        with pytest.raises(UsageError, match=r"^hook is a second communication hook, expected one per model: "):
            model.register_comm_hook(None, noop_hook)
        loss(model, rank).backward()
        return gradients(model.module)

    each_equals(run(program, 2), averaged())


def test_a_registration_between_forward_and_backward():
    # The forward has decided already that the engine divides; the hook would do it again.
    def program(rank):
        model = wrapped()
        own = loss(model, rank)
        with pytest.raises(UsageError, match=r"^a communication hook registered between a forward and its backward, "):
            model.register_comm_hook(None, allreduce_hook)
        own.backward()
        first = gradients(model.module)
        model.zero_grad()
        model.register_comm_hook(None, allreduce_hook)
        loss(model, rank).backward()
        return first, gradients(model.module)

    each_equals(run(program, 2), averaged())
