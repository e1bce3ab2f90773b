"""Join: ranks without input shadow the others, divide as asked, and take over the model of the last to join.

How whole trainings come out, with either engine: tests/ddp_equivalence/test_join.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpsim import Verdict, simulate
from ddpsim.ddp import DistributedDataParallel, JoinError
from ddpsim.simulator.calls import Phase
from tests.kit import networks, oracle
from tests.kit.results import returned
from tests.kit.rows import rows
from tests.kit.running import calls, check, counts, linear, row, run
from tests.kit.training import (
    TINY,
    Training,
    assert_same,
    batches,
    equal_batches,
    mean_square,
    seeded,
    steps,
    train,
    trained,
)


def joined(*numbers, build=networks.multilayer, **options):
    return Training(build, batches(*numbers), mean_square, is_joined=True, **options)


@pytest.mark.parametrize("between", ["no_sync", "no_grad"])
def test_gradients_that_are_due_are_divided_by_the_ranks_present_when_they_are_reduced(between):
    # Both ranks run a forward; the only backward comes later, when rank 1 has joined. Rank 1 contributes zeros.
    def program(rank):
        model = DistributedDataParallel(linear())
        with model.join(divide_by_initial_world_size=False):
            loss = model(row(3, 1)).sum()
            if rank == 0:
                with model.no_sync() if between == "no_sync" else torch.no_grad():
                    again = model(row(5, 2)).sum()
                (again if between == "no_sync" else loss).backward()
        return None if rank else model.module.weight.grad

    returns = returned(program, 2)
    plain = linear()
    plain(row(*((5, 2) if between == "no_sync" else (3, 1)))).sum().backward()
    assert torch.equal(returns[0], plain.weight.grad)


@rows("options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=["searched", "static"])
@rows("numbers", [(0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_parameters_that_nobody_uses(numbers, options):
    check(joined(*numbers, build=networks.OneUnused, momentum=0.9), {"bucket_cap_mb": TINY, **options})


@rows("numbers", [(1, 2), (2, 2), (1, 3, 2), (0, 1)], ids=str)
def test_a_hook_averages_over_the_ranks_present(numbers):
    def program(rank):
        model = DistributedDataParallel(linear())
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        gradients = []
        with model.join(divide_by_initial_world_size=False):
            for _ in range(numbers[rank]):
                model.zero_grad()
                model(row(1, 2)).sum().backward()
                gradients.append(model.module.weight.grad.tolist())
        return gradients

    for number, gradients in zip(numbers, run(program, len(numbers)).returns, strict=True):
        assert [own for (own,) in gradients] == [pytest.approx([1, 2], rel=1e-15)] * number


def test_the_order_is_discovered_while_a_rank_has_joined():
    # The rebuild comes with the second forward, which rank 0 and rank 2 do not have.
    result = check(joined(1, 3, 0, build=networks.registered_backwards), {"bucket_cap_mb": TINY})
    assert result.returns[0].plan == (("last.bias",), ("last.weight",), ("first.bias",), ("first.weight",))


def test_while_all_have_input_it_costs_one_small_all_reduce_a_forward():
    training = joined(3, 3, build=networks.with_buffers)
    without = counts(run(train, 2, replace(training, is_joined=False), {}))
    result = check(training)
    with_join = counts(result)
    control = with_join.pop("join control")
    assert control == 3 + 1  # a forward each; and the end
    assert {str(call.signature) for call in calls(result, Phase.JOIN_CONTROL)} == {"all_reduce SUM int64[2, 5]"}
    with_join["state broadcast"] -= without["state broadcast"]
    assert with_join == {**without, "rebuild": without["rebuild"] + 1}  # at the end, all take over one rank's state


def test_each_call_is_announced_once_somebody_has_joined():
    even = counts(check(joined(2, 2), {"bucket_cap_mb": TINY}))
    uneven = counts(check(joined(2, 3), {"bucket_cap_mb": TINY}))
    buckets = 6
    assert uneven["bucket"] == even["bucket"] + buckets
    assert uneven["join control"] == even["join control"] + 1 + buckets


@rows(
    ("numbers", "last"),
    [
        ((1, 2), 1),
        ((2, 1), 0),
        ((2, 2), 1),
        ((3, 1, 3), 2),
        ((3, 3, 1), 1),
        ((1, 1, 1, 1), 3),
        ((0, 0, 0), 2),
        ((2,), 0),
    ],
    ids=str,
)
def test_the_last_rank_to_join_of_several_the_highest_gives_its_state_to_all(numbers, last):
    def program(rank):
        module = nn.BatchNorm1d(2).double()
        model = DistributedDataParallel(module)
        with model.join():
            for _ in range(numbers[rank]):
                model(torch.ones(3, 2, dtype=torch.float64)).sum().backward()
            with torch.no_grad():
                module.weight.fill_(rank)
                module.running_mean.fill_(10 + rank)
        return module.weight.tolist(), module.running_mean.tolist()

    expected = ([last] * 2, [10 + last] * 2)
    assert list(run(program, len(numbers)).returns) == [expected] * len(numbers)


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str)
@rows(
    "epochs",
    [((0, 2), (2, 2)), ((2, 0), (1, 3), (2, 0)), ((1, 2, 3), (3, 2, 1), (2, 2, 2)), ((1, 1), (0, 1), (3, 2))],
    ids=str,
)
def test_several_joins_in_a_row(epochs, options):
    def program(rank):
        torch.manual_seed(rank)
        module = networks.with_buffers()
        model = DistributedDataParallel(module, bucket_cap_mb=TINY, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for training in trainings:
            with model.join():
                steps(model, optimizer, training, training.batches[rank])
            seen.append(trained(module))
        steps(model, optimizer, last, last.batches[rank])
        return seen, trained(module), model.reducer.bucket_plan

    trainings = [joined(*numbers, build=networks.with_buffers) for numbers in epochs]
    size = len(epochs[0])
    last = Training(networks.with_buffers, equal_batches(size, 2), mean_square)
    returns = run(program, size).returns
    module = seeded(networks.with_buffers)
    for epoch, training in enumerate(trainings):
        for rank, wanted in enumerate(oracle.train(training, module)):
            assert_same(returns[rank][0][epoch], wanted, gradients=False)
        _load(module, wanted)
    for rank, wanted in enumerate(oracle.train(last, module)):
        assert_same(returns[rank][1], wanted)
        assert returns[rank][2] == returns[0][2]


def _load(module, state):
    module.load_state_dict({**state.parameters, **state.buffers})


def test_ranks_that_left_after_different_forwards_go_on_together():
    # Rank 0's last forward synchronizes, rank 1's is local: whether the next one synchronizes buffers is agreed anew.
    def program(rank):
        model = DistributedDataParallel(seeded(networks.with_buffers))
        data = batches(1, 2)[rank]
        with model.join():
            mean_square(model, data[0]).backward()
            if rank == 1:
                with model.no_sync():
                    mean_square(model, data[1]).backward()
        mean_square(model, data[0]).backward()
        return [p.grad for p in model.parameters()]

    one, other = run(program, 2).returns
    assert len(one) == len(other)


def test_training_goes_on_after_an_early_termination():
    def program(rank):
        model = DistributedDataParallel(linear())
        for _ in range(2):
            with pytest.raises(JoinError):
                train_while_all_have_input(model, 1 + rank)
            model.zero_grad()
        model(row(1, rank)).sum().backward()
        return model.module.weight.grad.tolist()

    def train_while_all_have_input(model, count):
        with model.join(throw_on_early_termination=True):
            for _ in range(count):
                model(row(1, 2)).sum().backward()

    assert list(run(program, 2).returns) == [[[1, 0.5]]] * 2


def test_a_join_that_is_not_enabled_does_nothing():
    def program(rank, *numbers):
        model = DistributedDataParallel(linear())
        with model.join(enable=False):
            for _ in range(numbers[rank]):
                model(row(1, 2)).sum().backward()

    assert "join control" not in counts(run(program, 2, 2, 2))
    assert simulate(program, 2, args=(2, 1)).verdict is Verdict.FAIL
