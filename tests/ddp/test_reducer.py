"""The reducer: which gradients travel together, when, in which order, and where they lie afterwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from ddpsim.ddp import DistributedDataParallel
from ddpsim.simulator.calls import Phase
from tests.kit import networks
from tests.kit.networks import Chain
from tests.kit.rows import rows
from tests.kit.running import (
    calls,
    check,
    counts,
    each_equals,
    expected,
    gradients,
    mark,
    mark_gradients,
    run,
    timeline,
)
from tests.kit.training import TINY, Training, equal_batches, mean_square, seeded

MODES = pytest.mark.parametrize("as_view", [None, False, True])


# What travels together.


class OfTwoKinds(nn.Module):
    """Parameters of two dtypes in turn, each of 16 bytes."""

    def __init__(self):
        super().__init__()
        for number in range(3):
            self.register_parameter(f"single{number}", nn.Parameter(torch.ones(4)))
            self.register_parameter(f"double{number}", nn.Parameter(torch.ones(2, dtype=torch.float64)))

    def forward(self):
        return sum(parameter.double().sum() for parameter in self.parameters())


@pytest.mark.parametrize(
    ("cap_mb", "expected"),
    [
        (25, (("double2", "double1", "double0"), ("single2", "single1", "single0"))),
        (32 / 2**20, (("double2", "double1"), ("single2", "single1"), ("double0",), ("single0",))),
    ],
)
def test_a_bucket_has_one_dtype(cap_mb, expected):
    def program(rank):
        model = DistributedDataParallel(OfTwoKinds(), bucket_cap_mb=cap_mb)
        model().backward()
        assert all(
            len({parameter.dtype for parameter in bucket.parameters}) == 1
            and bucket.flat.dtype == bucket.parameters[0].dtype
            for bucket in model.reducer.buckets
        )
        return model.reducer.bucket_plan

    result = run(program, 2)
    assert result.returns == (expected, expected)
    sent = [(call.signature.dtype, call.signature.shapes) for call in calls(result, Phase.BUCKET)]
    sizes = {"double": 2, "single": 4}
    assert sent == [
        (f"float{64 if bucket[0].startswith('double') else 32}", ((sizes[bucket[0][:-1]] * len(bucket),),))
        for bucket in expected
    ]


def test_the_first_bucket_closes_at_one_mebibyte_and_the_others_at_the_cap():
    def program(rank):
        quarters = nn.ParameterList([nn.Parameter(torch.zeros(2**16)) for _ in range(34)])
        return [
            bucket.size_bytes / 2**18 for bucket in DistributedDataParallel(quarters, bucket_cap_mb=3).reducer.buckets
        ]

    assert run(program, 2).returns[0] == [4, 12, 12, 6]


def test_without_a_cap_it_is_25_mebibytes():
    def program(rank):
        quarters = nn.ParameterList([nn.Parameter(torch.zeros(2**20, dtype=torch.half)) for _ in range(15)])
        model = DistributedDataParallel(quarters, init_sync=False)
        return [bucket.size_bytes / 2**20 for bucket in model.reducer.buckets]

    assert run(program, 1).returns[0] == [2, 26, 2]


# When it travels.


def chained(rank, orders, cap_mb=TINY / 2):
    module = Chain()
    mark_gradients(module)
    model = DistributedDataParallel(module, bucket_cap_mb=cap_mb)
    output = Chain.using(*orders)(model, rank)
    mark("backward")
    output.backward()
    mark("end")
    return gradients(module)


@pytest.mark.parametrize(
    ("order", "cap_bytes", "line"),
    [
        pytest.param("abc", 5, "c, bucket 0, b, bucket 1, a, bucket 2", id="as soon as it is full"),
        pytest.param("bca", 5, "a, c, bucket 0, b, bucket 1, bucket 2", id="full too early: it waits for its turn"),
        pytest.param("abc", 16, "c, b, bucket 0, a, bucket 1", id="two gradients to a bucket"),
    ],
)
def test_when_a_bucket_starts(order, cap_bytes, line):
    result = run(chained, 2, (order, order), cap_bytes / 2**20)
    for rank in range(2):
        assert timeline(result, rank) == ["backward", *line.split(", "), "end"]
    each_equals(result, expected(Chain, Chain.using(order, order)))


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.usefixtures("rank_order")
def test_the_order_of_reduction_is_the_same_where_gradients_come_in_different_orders(policy):
    orders = ("abc", "cab", "bca", "cba")
    result = run(chained, 4, orders, policy=policy, seed=3)
    for rank, order in enumerate(orders):
        line = timeline(result, rank)
        assert [word for word in line if word in "abc"] == list(reversed(order))
        assert [word for word in line if word.startswith("bucket")] == ["bucket 0", "bucket 1", "bucket 2"]
    each_equals(result, expected(Chain, Chain.using(*orders), range(4)))
    for bucket, name in enumerate("cba"):
        assert {calls(result, Phase.BUCKET, rank)[bucket].origin.parameters for rank in range(4)} == {(name,)}


def test_backward_waits_for_the_reductions():
    # When backward returns, every bucket has met: the last event of its calls is before the mark.
    result = run(chained, 2, ("abc", "abc"))
    for rank in range(2):
        lines = [event.text or event.kind.value for event in result.trace if event.rank == rank]
        end = next(index for index, line in enumerate(lines) if line.endswith("mark end"))
        assert lines[:end].count("wait") == lines[:end].count("done")
        assert "wait" not in lines[end:]


# How many calls.


STEPS = 4


def stepping(rank, options, accumulate=1):
    torch.manual_seed(rank)
    model = DistributedDataParallel(networks.multilayer(), **options)
    mark("constructed")
    for number in range(STEPS):
        model.require_backward_grad_sync = (number + 1) % accumulate == 0
        mean_square(model, torch.ones(3, 4, dtype=torch.float64) + rank).backward()
    with torch.no_grad():
        model(torch.ones(3, 4, dtype=torch.float64))
    model.module(torch.ones(3, 4, dtype=torch.float64))


@rows("world_size", [2, 3])
@rows(
    ("options", "accumulate", "expected"),
    [
        ({}, 1, {"bucket": STEPS, "rebuild": 1}),
        ({"bucket_cap_mb": TINY}, 1, {"bucket": 6 * STEPS, "rebuild": 1}),
        ({"find_unused_parameters": True}, 1, {"bucket": STEPS, "rebuild": 1, "used map": STEPS}),
        ({"static_graph": True}, 1, {"bucket": STEPS, "rebuild": 1, "used map": 1}),
        ({"static_graph": True, "find_unused_parameters": True}, 1, {"bucket": STEPS, "rebuild": 1, "used map": 1}),
        ({"gradient_as_bucket_view": False}, 1, {"bucket": STEPS, "rebuild": 1}),
        ({}, 2, {"bucket": STEPS // 2, "rebuild": 1}),
        ({}, STEPS, {"bucket": 1}),
        ({}, STEPS + 1, {}),
    ],
    ids=str,
)
def test_counts_of_calls(options, accumulate, expected, world_size):
    # networks.multilayer has no buffers, and an evaluation forward calls nothing: that would be in the counts.
    result = run(stepping, world_size, options, accumulate)
    for rank in range(world_size):
        found = counts(result, rank)
        assert found.pop("parameter check") == found.pop("state broadcast") == 1
        assert found == expected


# Where it lies, and what it is.


@MODES
def test_where_gradients_lie(as_view):
    def program(rank):
        module = seeded(networks.multilayer)
        model = DistributedDataParallel(module, bucket_cap_mb=200 / 2**20, gradient_as_bucket_view=as_view)
        for _ in range(3):
            mean_square(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        storages = [p.grad.untyped_storage().data_ptr() for p in module.parameters()]
        flat_of = {
            parameter: bucket.flat.untyped_storage().data_ptr()
            for bucket in model.reducer.buckets
            for parameter in bucket.parameters
        }
        in_bucket = [flat_of[p] for p in module.parameters()]
        places = sorted(
            (p.grad.untyped_storage().data_ptr(), p.grad.storage_offset(), p.numel()) for p in module.parameters()
        )
        return storages, in_bucket, places, len(model.reducer.buckets)

    for storages, in_bucket, places, buckets in run(program, 2).returns:
        assert len(set(in_bucket)) == buckets > 1
        if as_view is False:
            assert len(set(storages)) == 6
            assert not set(storages) & set(in_bucket)
            continue
        assert storages == in_bucket
        for (storage, offset, size), (next_storage, next_offset, _) in pairwise(places):
            assert next_offset == (offset + size if storage == next_storage else 0)  # no gaps, no overlaps


def test_views_stay_the_same_tensors_after_zeroing_in_place():
    def program(rank):
        model = DistributedDataParallel(networks.multilayer())
        module = model.module
        found = []
        for _ in range(4):
            mean_square(model, torch.ones(2, 4, dtype=torch.float64)).backward()
            found.append([p.grad.data_ptr() for p in module.parameters()])
            module.zero_grad(set_to_none=False)
        return found

    first, *others = run(program, 2).returns[0]  # after the first, buckets are laid out anew
    assert others[0] == others[1] == others[2] != first


def test_each_gradient_is_scaled_before_they_are_summed():
    # In half precision the sum of four ranks' gradients overflows; their average does not.
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.half))

        def forward(self):
            return (self.weight * 40000).sum()

    def program(rank):
        model = DistributedDataParallel(Large())
        model().backward()
        return model.module.weight.grad.tolist()

    assert run(program, 4).returns == ([40000.0] * 3,) * 4


# On a GPU.


@pytest.mark.gpu
@MODES
def test_on_a_gpu(as_view):
    def build():
        return networks.multilayer().cuda()

    batches = tuple(tuple(batch.cuda() for batch in own) for own in equal_batches(2))
    result = check(Training(build, batches, mean_square), {"gradient_as_bucket_view": as_view, "bucket_cap_mb": TINY})
    assert all(gradient.is_cuda for gradient in result.returns[0].gradients.values())


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_device_ids_and_unused_parameters_on_a_gpu(options):
    def program(rank):
        module = seeded(networks.multilayer).cuda()
        model = DistributedDataParallel(module, device_ids=[torch.cuda.current_device()], **options)
        for batch in equal_batches(2)[rank]:  # on the CPU: device_ids moves it
            module.zero_grad()
            mean_square(model, batch).backward()
        return {name: gradient.cpu() for name, gradient in gradients(module).items()}

    last = [batches[-1] for batches in equal_batches(2)]
    wanted = expected(networks.multilayer, lambda module, rank: mean_square(module, last[rank]))
    for found in run(program, 2).returns:
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
