"""What a fault could have changed without any other test noticing; each test here names its subject."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join as TorchJoin

from ddpsim.ddp import DistributedDataParallel, OpenBackwardError
from ddpsim.ddp.bucket import Bucket
from tests.kit.networks import Chain
from tests.kit.rows import rows
from tests.kit.running import assert_equal, check_backwards, expected, gradients, run
from tests.kit.training import TINY

CAPS = pytest.mark.parametrize("cap_mb", [25, TINY / 2])


def loss(model, names, rank):
    return Chain.using(*[names] * 4)(model, rank)


# A backward that left buckets open.


@CAPS
def test_after_an_open_backward_training_goes_on(cap_mb):
    def program(rank):
        model = DistributedDataParallel(Chain(), bucket_cap_mb=cap_mb)
        loss(model, "ab", rank).backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for c on ranks 0, 1"):
            loss(model, "abc", rank)
        found = []
        for names in ("bca", "abc"):
            model.module.zero_grad()
            loss(model, names, rank).backward()
            found.append(gradients(model.module))
        return found, [name for bucket in model.reducer.bucket_plan for name in bucket]

    for found, order in run(program, 2).returns:
        assert_equal(found[0], expected(Chain, Chain.using("bca", "bca")))
        assert_equal(found[1], expected(Chain, Chain.using("abc", "abc")))
        assert order == ["a", "c", "b"]  # that of the first whole backward


# Several forwards, one backward.


@CAPS
def test_two_forwards_of_different_parameters_and_one_backward(cap_mb):
    def both(model, rank):
        return loss(model, "a", rank) + loss(model, "b", rank)

    check_backwards(Chain, both, options={"find_unused_parameters": True, "bucket_cap_mb": cap_mb})


# What a parameter keeps that nobody used.


@pytest.mark.parametrize("as_view", [None, False, True])
def test_a_kept_gradient_in_a_bucket_may_differ_between_ranks(as_view):
    def program(rank):
        model = DistributedDataParallel(Chain(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
        for _ in range(2):
            loss(model, "abc", rank).backward()
        model.module.b.grad.fill_(rank + 1)
        loss(model, "a", rank).backward()
        return model.module.b.grad.item()

    assert run(program, 2).returns == (1.0, 2.0)


# A bucket alone. Inside a backward the simulated group waits by itself, as torch's own engine needs it to.


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_a_bucket_is_reduced_when_it_is_finished(policy):
    def program(rank):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.tensor([1.0, 2.0]) * (rank + 1)
        bucket = Bucket(0, [0], {"weight": weight}, is_last=True, is_sparse=False)
        bucket.copy_gradients_in(None, makes_views=True)
        bucket.start_reduction(dist.group.WORLD, None, None)
        bucket.finish_reduction()
        return weight.grad.tolist()

    assert run(program, 3, policy=policy).returns == ([6.0, 12.0],) * 3


# What joined ranks have used, and what they have afterwards.


def test_what_a_rank_used_before_it_joined_does_not_count():
    def program(rank):
        model = DistributedDataParallel(Chain(), find_unused_parameters=True)
        with model.join():
            with model.no_sync():
                loss(model, "b" if rank == 0 else "a", rank).backward()
            if rank == 1:
                loss(model, "a", rank).backward()
        return {name: gradient is not None for name, gradient in gradients(model.module).items()}

    for rank, found in enumerate(run(program, 2).returns):
        assert found == {"a": True, "b": rank == 0, "c": False}


def test_what_nobody_used_is_on_a_joined_rank_as_it_was():
    def program(rank):
        model = DistributedDataParallel(Chain(), find_unused_parameters=True)
        model.module.b.grad = torch.tensor(5.0, dtype=torch.float64)
        with model.join():
            for _ in range(rank):
                loss(model, "a", rank).backward()
        return model.module.b.grad.item(), model.module.c.grad

    assert run(program, 2).returns == ((5.0, None),) * 2


# What ranks know after a join.


def test_an_order_that_only_the_last_rank_has_seen_is_everyones_after_a_join():
    def program(rank):
        model = DistributedDataParallel(Chain(), bucket_cap_mb=TINY / 2)
        for number in (rank, 1):
            with model.join():
                for _ in range(number):
                    loss(model, "cab", rank).backward()
        return model.reducer.bucket_plan

    assert run(program, 2).returns == ((("b",), ("a",), ("c",)),) * 2


def test_a_static_graph_that_only_the_last_rank_has_seen_is_everyones_after_a_join():
    def program(rank):
        model = DistributedDataParallel(Chain(), bucket_cap_mb=TINY / 2, static_graph=True)
        with model.join():
            for _ in range(rank):
                loss(model, "ab", rank).backward()
        model.zero_grad()
        loss(model, "ab", rank).backward()
        return model.reducer.bytes_started_early, model.module.c.grad

    for started_early, unused in run(program, 2).returns:
        assert started_early > 0
        assert unused is None


# Roots.


def test_a_root_is_a_number_within_the_group():
    def program(rank):
        group = dist.new_group([1, 2])
        if rank == 0:
            return None
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group)
        found = torch.tensor([5.0])
        with model.join():
            for _ in range(rank):
                model(torch.ones(1, 1)).sum().backward()
                dist.reduce(found, 2, group=group)
        return found.item()

    # In the first iteration both add 5 to make 10; in the second, rank 1 adds nothing.
    assert run(program, 3).returns[2] == 10.0


# Samples.


def test_nan_of_a_rank_without_samples_reaches_nobody():
    def program(rank):
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
        with model.join(weight_by_samples=True):
            output = model(torch.ones(3 * rank, 2))
            (output.mean() * model.module.weight.sum()).backward()
            return model.module.weight.grad.isfinite().all().item()

    assert run(program, 2).returns == (True, True)


# torch's Join.


@rows(("counts", "last"), [((2, 1), 0), ((1, 2, 1), 1), ((2, 2, 1), 1), ((0, 0), 1)], ids=str)
def test_under_torchs_join_the_last_rank_gives_its_state_to_all(counts, last):
    def program(rank):
        model = DistributedDataParallel(nn.Linear(1, 1))
        with TorchJoin([model]):
            for _ in range(counts[rank]):
                model(torch.ones(1, 1)).sum().backward()
            nn.init.constant_(model.module.weight, rank)
        return model.module.weight.item()

    assert run(program, len(counts)).returns == (last,) * len(counts)


def test_under_torchs_join_an_iteration_ends_that_reduces_nothing():
    def program(rank):
        model = DistributedDataParallel(nn.Linear(1, 1))
        with TorchJoin([model]), torch.no_grad():
            for _ in range(2 * rank):
                model(torch.ones(1, 1))

    run(program, 2)
