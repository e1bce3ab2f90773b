"""ZeroRedundancyOptimizer against the whole optimizer: what torch's test_zero_redundancy_optimizer.py asks of it.

In a join it is in tests/test_joins.py, fused into the backward in tests/ddp_equivalence/test_communication_hooks.py.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from ddpsim import simulate
from tests.kit.results import returned

STEPS = 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 1))


def batches(world_size):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, world_size, 4, 5, generator=generator)


def trained(model, optimizer, inputs):
    for each in inputs:
        optimizer.zero_grad()
        model(each).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def two_groups(model):
    return [
        {"params": [each for each in model.parameters() if each.ndim == 2], "weight_decay": 0.0},
        {"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.1},
    ]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.AdamW, {"lr": 0.01}),
    ],
)
@pytest.mark.parametrize("is_view", [False, True])
def test_it_trains_as_the_whole_optimizer(world_size, kind, options, is_view):
    def program(rank):
        model = DistributedDataParallel(network())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=kind, parameters_as_bucket_view=is_view, **options
        )
        own = len(optimizer.optim.param_groups[0]["params"])
        return trained(model, optimizer, batches(world_size)[:, rank]), own

    # Equal shares: the mean of the ranks' losses is the loss of the whole batch.
    whole = network()
    expected = trained(whole, kind(whole.parameters(), **options), batches(world_size).flatten(1, 2))
    returns = returned(program, world_size)
    for parameters, _ in returns:
        assert_close(parameters, expected)
    assert sum(own for _, own in returns) == len(expected)  # each parameter is one rank's


def test_groups_of_parameters_given_at_once_added_later_and_unsharded_come_to_the_same():
    def program(rank):
        models = [network() for _ in range(3)]
        at_once = ZeroRedundancyOptimizer(two_groups(models[0]), optimizer_class=torch.optim.AdamW, lr=0.01)
        first, second = two_groups(models[1])
        later = ZeroRedundancyOptimizer(first["params"], optimizer_class=torch.optim.AdamW, lr=0.01, weight_decay=0.0)
        later.add_param_group(second)
        whole = torch.optim.AdamW(two_groups(models[2]), lr=0.01)
        optimizers = (at_once, later, whole)
        return [trained(*each, batches(1)[:, 0]) for each in zip(models, optimizers, strict=True)]

    for at_once, later, whole in returned(program, 2):
        assert_close(at_once, later)
        assert_close(at_once, whole)


def test_state_gathered_on_one_rank_goes_on_where_it_was():
    def program(rank):
        inputs = batches(2)[:, 0]
        model = network()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
        trained(model, optimizer, inputs)
        optimizer.consolidate_state_dict(to=1)
        told = [optimizer.state_dict() if rank == 1 else None]
        dist.broadcast_object_list(told, src=1)
        again = copy.deepcopy(model)
        resumed = ZeroRedundancyOptimizer(again.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
        resumed.load_state_dict(copy.deepcopy(told[0]))  # on its rank they are the tensors of the first
        return trained(model, optimizer, inputs), trained(again, resumed, inputs), len(told[0]["state"])

    for went_on, resumed, states in returned(program, 2):
        assert_close(resumed, went_on, rtol=0, atol=0)
        assert states == 6


@pytest.mark.tier("nightly")
def test_the_whole_optimizer_goes_on_with_the_state_of_shards_and_the_reverse():
    def program(rank):
        inputs = batches(1)[:, 0]
        model = network()
        sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
        whole_model = network()
        whole = torch.optim.AdamW(whole_model.parameters(), lr=0.01)
        trained(model, sharded, inputs)
        trained(whole_model, whole, inputs)
        sharded.consolidate_state_dict(to=0)
        told = [sharded.state_dict() if rank == 0 else None]
        dist.broadcast_object_list(told, src=0)
        sharded.load_state_dict(copy.deepcopy(whole.state_dict()))
        whole.load_state_dict(told[0])
        return trained(model, sharded, inputs), trained(whole_model, whole, inputs)

    model = network()
    expected = trained(model, torch.optim.AdamW(model.parameters(), lr=0.01), batches(1)[:, 0].repeat(2, 1, 1))
    for of_shards, of_whole in returned(program, 2):
        assert_close(of_shards, expected)
        assert_close(of_whole, expected)


@pytest.mark.tier("nightly")
def test_a_layer_that_is_frozen_for_a_while():
    def frozen_for_a_while(model, inner, optimizer, inputs):
        for is_trained in (True, False, True):
            inner[0].weight.requires_grad_(is_trained)
            parameters = trained(model, optimizer, inputs)
        return parameters

    def program(rank):
        model = DistributedDataParallel(network(), find_unused_parameters=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
        return frozen_for_a_while(model, model.module, optimizer, batches(2)[:, rank])

    whole = network()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    expected = frozen_for_a_while(whole, whole, optimizer, batches(2).flatten(1, 2))
    for parameters in returned(program, 2):
        assert_close(parameters, expected)


def test_only_the_rank_that_gathered_the_state_has_it():
    def program(rank):
        optimizer = ZeroRedundancyOptimizer(network().parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
        optimizer.consolidate_state_dict(to=0)
        if rank == 1:
            with pytest.raises(RuntimeError, match="has not been consolidated on this rank"):
                optimizer.state_dict()

    returned(program, 2)


def test_a_closure_and_a_scheduler():
    def program(rank):
        parameter = nn.Parameter(torch.tensor([2.0]))
        optimizer = ZeroRedundancyOptimizer([parameter], optimizer_class=torch.optim.SGD, lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

        def closure():
            optimizer.zero_grad()
            loss = parameter.square().sum()
            loss.backward()
            return loss

        losses = []
        for _ in range(2):
            losses.append(optimizer.step(closure).item())
            schedule.step()
        return losses, parameter.item()

    # By hand: the gradient is 2 p; 2 - 0.5 * 4 = 0, from where it does not move.
    assert returned(program, 2) == (([4.0, 0.0], 0.0),) * 2


def test_a_group_of_every_second_rank():
    def program(rank):
        even = dist.new_group([0, 2])
        if rank % 2:
            return None
        model = DistributedDataParallel(network(), process_group=even)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, process_group=even, lr=0.1
        )
        return trained(model, optimizer, batches(2)[:, rank // 2])

    whole = network()
    expected = trained(whole, torch.optim.SGD(whole.parameters(), lr=0.1), batches(2).flatten(1, 2))
    first, nothing, second, none = returned(program, 4)
    assert nothing is none is None
    assert_close(first, expected)
    assert_close(second, expected)


def test_a_rank_that_does_not_gather_is_missing():
    def program(rank):
        optimizer = ZeroRedundancyOptimizer(network().parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
        if rank != 1:
            optimizer.consolidate_state_dict(to=0)

    [finding] = simulate(program, 3).findings
    assert (str(finding.code), finding.ranks) == ("deadlock.missing_rank", (1,))
