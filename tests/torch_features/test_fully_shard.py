"""FSDP2's fully_shard against the model in one piece: what torch's test_fully_shard_*.py ask of it."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from ddpsim import simulate
from ddpsim.simulator.events import EventKind
from tests.kit.results import returned
from tests.tiers import sweep

STEPS = 3


class Network(nn.Module):
    def __init__(self, is_recomputed=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 5)  # its rows do not divide by 2 or 4
        self.is_recomputed = is_recomputed

    def forward(self, inputs):
        for block in self.blocks:
            inputs = torch.tanh(checkpoint(block, inputs, use_reentrant=False) if self.is_recomputed else block(inputs))
        return self.last(inputs)


def batches(world_size):
    return torch.randn(STEPS, world_size, 2, 6, generator=torch.Generator().manual_seed(1))


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def trained(model, inputs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for each in inputs:
        optimizer.zero_grad()
        model(each).square().mean().backward()
        optimizer.step()
    return {name: full(each) for name, each in model.named_parameters()}


def gradients(model):
    return {name: full(each.grad) for name, each in model.named_parameters() if each.grad is not None}


def backward(model, inputs):
    """The gradients of all parameters that have one, whole."""
    model(inputs).square().mean().backward()
    return gradients(model)


def whole(world_size):
    return trained(Network(), batches(world_size).flatten(1, 2))


def whole_backward(world_size=2):
    return backward(Network(), batches(world_size)[0].flatten(0, 1))


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


@pytest.mark.parametrize(
    ("is_recomputed", "reshards", "world_size", "seed"),
    sweep(
        product([False, True], [True, False], [2, 4], [None, 0]),
        lambda case: case[0] is not case[1] and (case[2] == 4) is (case[3] is None),
    ),
)
def test_it_trains_as_the_whole_model(world_size, reshards, is_recomputed, seed):
    def program(rank):
        mesh = init_device_mesh("cpu", (world_size,))
        model = sharded(Network(is_recomputed), mesh=mesh, reshard_after_forward=reshards)
        return trained(model, batches(world_size)[:, rank])

    policy = {} if seed is None else {"policy": "random", "seed": seed}
    expected = whole(world_size)
    for parameters in returned(program, world_size, **policy):
        assert_close(parameters, expected)


def gathered_for_backward_from_half_of_the_world():
    return sharded(Network(), reshard_after_forward=2)


def sharded_by_columns():
    return sharded(Network(), shard_placement_fn=lambda parameter: Shard(1) if parameter.ndim == 2 else None)


def two_blocks_as_one_unit():
    model = Network()
    fully_shard(list(model.blocks[:2]))
    return fully_shard(model)


def gathered_ahead():
    model = sharded(Network())
    first, second, third = model.blocks
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second, first])
    return model


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(
    ("make", "world_size"),
    [
        (gathered_for_backward_from_half_of_the_world, 4),
        (sharded_by_columns, 2),
        (two_blocks_as_one_unit, 2),
        (gathered_ahead, 2),
    ],
)
def test_it_trains_as_the_whole_model_however_it_is_cut_and_gathered(make, world_size):
    expected = whole(world_size)
    for parameters in returned(lambda rank: trained(make(), batches(world_size)[:, rank]), world_size):
        assert_close(parameters, expected)


def test_a_mesh_of_two_dimensions_shards_along_one_and_replicates_along_the_other():
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = sharded(Network(), mesh=mesh)
        parameters = trained(model, batches(4)[:, rank])
        return parameters, {each.placements for each in model.parameters()}, model.last.weight.to_local().shape[0]

    expected = whole(4)
    for rank, (parameters, placements, rows) in enumerate(returned(program, 4)):
        assert_close(parameters, expected)
        assert placements == {(Replicate(), Shard(0))}
        assert rows == (3 if rank % 2 == 0 else 2)


def test_accumulated_gradients_are_reduced_once():
    def program(rank, is_reduced_each_time):
        model = sharded(Network(), mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        parts = batches(2)[0][rank].chunk(2)
        optimizer.zero_grad()
        for number, each in enumerate(parts):
            model.set_requires_gradient_sync(is_reduced_each_time or number == 1)
            (model(each).square().mean() / 2).backward()
        optimizer.step()
        return {name: full(each) for name, each in model.named_parameters()}

    expected = trained(Network(), batches(2)[:1].flatten(1, 2))
    scattered = []
    for is_reduced_each_time in (True, False):
        result = simulate(program, 2, args=(is_reduced_each_time,))
        result.raise_for_verdict()
        for parameters in result.returns:
            assert_close(parameters, expected)
        calls = [event.call.signature.operation for event in result.trace if event.kind is EventKind.ISSUE]
        scattered.append(sum(each.startswith("reduce_scatter") for each in calls))
    # Of two ranks, for each of four units, in both backwards or in the last one.
    assert scattered == [2 * 4 * 2, 2 * 4]


@pytest.mark.tier("nightly")
def test_replicas_of_shards_are_summed_with_the_last_of_the_gradients_that_accumulate():
    def program(rank):
        model = sharded(Network(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
        for number, each in enumerate(batches(4)[0][rank].chunk(2)):
            model.set_requires_all_reduce(number == 1)
            (model(each).square().mean() / 2).backward()
        return gradients(model)

    result = simulate(program, 4)
    result.raise_for_verdict()
    for found in result.returns:
        assert_close(found, whole_backward(4))
    calls = [event.call.signature.operation for event in result.trace if event.kind is EventKind.ISSUE]
    # Of four ranks, for each of four units: a sum over the shards in both backwards, over replicas in the last one.
    assert sum(each.startswith("reduce_scatter") for each in calls) == 4 * 4 * 2
    assert calls.count("all_reduce") == 4 * 4


def test_the_norm_of_all_shards_is_clipped():
    def program(rank):
        return clipped(sharded(Network(), mesh=init_device_mesh("cpu", (2,))), batches(2)[0][rank])

    def clipped(model, inputs):
        backward(model, inputs)
        return full(nn.utils.clip_grad_norm_(model.parameters(), 0.01)).item(), gradients(model)

    expected, wanted = clipped(Network(), batches(2)[0].flatten(0, 1))
    for norm, found in returned(program, 2):
        assert norm == pytest.approx(expected, rel=1e-5)
        assert_close(found, wanted)


def test_it_computes_in_one_type_and_keeps_another():
    def program(rank):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = sharded(Network(), mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
        output = model(batches(2)[0][rank])
        output.float().square().mean().backward()
        return output.dtype, {each.dtype for each in model.parameters()}, gradients(model)

    for computed, kept, found in returned(program, 2):
        assert (computed, kept) == (torch.bfloat16, {torch.float32})
        assert_close(found, whole_backward(), rtol=0.05, atol=0.01)


def test_a_module_called_twice_and_one_that_is_not_called():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.idle, self.outer = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs):
            return self.outer(self.inner(inputs) + self.inner(self.inner(inputs)))

    def program(rank):
        model = Twice()
        for part in (model.inner, model.idle, model.outer):
            fully_shard(part)
        return backward(fully_shard(model), data[rank])

    data = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    expected = backward(Twice(), data.flatten(0, 1))
    for found in returned(program, 2):
        assert "idle.weight" not in found
        assert_close(found, expected)


def test_a_weight_that_two_modules_share():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.inner, self.out = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.words.weight

        def forward(self, words):
            return self.out(self.inner(self.words(words)))

    def program(rank):
        model = Tied()
        fully_shard([model.words, model.out])  # its seven rows do not divide by two
        return backward(fully_shard(model), data[rank])

    data = torch.tensor([[0, 1, 2], [2, 5, 6]])
    expected = backward(Tied(), data.flatten())
    for found in returned(program, 2):
        assert_close(found, expected)


@pytest.mark.tier("nightly")
def test_two_forwards_before_the_backward_and_a_part_of_the_model_alone():
    def losses(model, data):
        (model(data) - model(2 * data)).square().mean().backward()
        model.blocks[0](data).square().mean().backward()  # it accumulates
        return gradients(model)

    expected = losses(Network(), batches(2)[0].flatten(0, 1))
    for found in returned(lambda rank: losses(sharded(Network()), batches(2)[0][rank]), 2):
        assert_close(found, expected)


def test_another_method_than_forward_gathers_the_parameters():
    class Scored(nn.Linear):
        def score(self, inputs):
            return self(inputs).sum(1)

    def program(rank):
        torch.manual_seed(0)
        model = nn.Sequential(Scored(4, 3))
        expected = model[0].score(torch.ones(2, 4))
        register_fsdp_forward_method(fully_shard(model[0]), "score")
        fully_shard(model)
        return torch.equal(model[0].score(torch.ones(2, 4)), expected)

    assert returned(program, 2) == (True, True)


def test_frozen_parameters_have_no_gradients_and_are_gathered():
    def program(rank):
        model = Network()
        for block in model.blocks[:2]:
            block.requires_grad_(False)
        return backward(sharded(model), batches(2)[0][rank])

    trainable = {"blocks.2.weight", "blocks.2.bias", "last.weight", "last.bias"}
    expected = {name: gradient for name, gradient in whole_backward().items() if name in trainable}
    for found in returned(program, 2):
        assert_close(found, expected)


def test_by_hand_unsharded_and_sharded_again():
    def program(rank):
        model = sharded(Network())
        before = model.last.weight.to_local().clone()
        model.unshard()
        rows = [model.last.weight.shape[0], type(model.last.weight).__name__]
        model.reshard()
        return rows, torch.equal(model.last.weight.to_local(), before)

    assert returned(program, 2) == (([5, "Parameter"], True),) * 2


@pytest.mark.tier("nightly")
def test_units_are_gathered_ahead_by_hand_and_the_first_to_be_asked_for_waits():
    def program(rank):
        model = sharded(Network())
        handles = [block.unshard(async_op=True) for block in model.blocks]
        handles[0].wait()
        return type(model.blocks[0].weight).__name__, backward(model, batches(2)[0][rank])

    for kind, found in returned(program, 2):
        assert kind == "Parameter"
        assert_close(found, whole_backward())


def test_a_rank_that_skips_a_backward_is_found():
    def program(rank):
        model = sharded(Network())
        loss = model(batches(2)[0][rank]).square().mean()
        if rank == 0:
            loss.backward()

    [finding] = simulate(program, 2).findings
    assert (str(finding.code), finding.ranks) == ("deadlock.missing_rank", (1,))
