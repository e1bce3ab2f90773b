"""Threads beside training: what they communicate is right, what they do not touch is bitwise the same."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Verdict, replay, simulate
from tests.kit.rank_threads import beside, start
from tests.kit.results import returned

WORLD_SIZE = 3
STEPS = 4


def train(rank, group, *, in_background):
    """Train in DDP; after each step a checkpoint of the parameters is averaged over the ranks, on another group."""
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    model = DistributedDataParallel(inner, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(STEPS, 4, 6, generator=torch.Generator().manual_seed(rank))
    checkpoints = []

    def checkpoint(parameters):
        total = torch.cat(parameters)
        time.sleep(0.5)
        dist.all_reduce(total, group=group)
        checkpoints.append(total / WORLD_SIZE)

    with ThreadPoolExecutor(1) as background:
        pending = []
        for batch in data:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            parameters = [parameter.detach().reshape(-1).clone() for parameter in model.parameters()]
            if in_background:
                pending.append(background.submit(checkpoint, parameters))
        for future in pending:
            future.result()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]), checkpoints


def program(rank, in_background=True):
    group = dist.new_group(range(WORLD_SIZE))
    return train(rank, group, in_background=in_background)


SCHEDULES = [("round_robin", 0), ("random", 0), ("random", 1), ("random", 2), ("pct", 0)]


@pytest.mark.parametrize(("policy", "seed"), SCHEDULES, ids=lambda value: str(value))
@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_a_checkpoint_in_the_background_changes_no_bit(policy, seed, transport):
    alone = simulate(program, WORLD_SIZE, args=(False,), transport=transport, check="replicas")
    beside = simulate(program, WORLD_SIZE, policy=policy, seed=seed, transport=transport, check="replicas")
    assert (alone.verdict, beside.verdict) == (Verdict.PASS, Verdict.PASS)
    assert beside.findings == ()
    for (plain, _), (other, checkpoints) in zip(alone.returns, beside.returns, strict=True):
        assert torch.equal(plain, other)
        assert len(checkpoints) == STEPS
        assert torch.allclose(checkpoints[-1], plain)  # replicas agree, so their mean is each of them


def in_any_order(rank):
    order = []

    def call(name, size):
        dist.all_reduce(torch.ones(size), group=groups[rank][name])
        order.append(name)

    groups = {rank: {name: dist.new_group([0, 1]) for name in "ab"}}
    threads = [start(call, name, size, name=name) for size, name in enumerate("ab", 1)]
    for thread in threads:
        thread.join()
    return order


def test_seeds_give_several_orders_and_each_the_same_run_twice():
    results = [simulate(in_any_order, 2, policy="random", seed=seed) for seed in range(12)]
    assert {repr(order) for result in results for order in result.returns} == {"['a', 'b']", "['b', 'a']"}
    for seed, result in enumerate(results):
        again = simulate(in_any_order, 2, policy="random", seed=seed)
        assert again.trace.digest() == result.trace.digest()
        assert replay(in_any_order, 2, result.schedule).trace.digest() == result.trace.digest()
    assert len({result.trace.digest() for result in results}) > 6


def test_a_thread_waits_for_what_another_one_issued():
    def program(rank):
        total = torch.tensor(float(rank))
        work = dist.all_reduce(total, async_op=True)
        chained = work.get_future().then(lambda future: future.value()[0] + 1)
        seen = []
        beside(lambda: seen.append(work.wait()), lambda: seen.append(chained.wait().item()))
        return sorted(seen), work.is_completed(), total.item()

    for policy, seed in SCHEDULES:
        assert returned(program, 3, policy=policy, seed=seed) == (([True, 4.0], True, 3.0),) * 3


def test_a_hook_that_waits_in_a_chain_keeps_its_thread():
    """Another thread of the rank may run the chain; who needs its end waits for that."""

    def twice(state, bucket):
        def again(future):
            dist.all_reduce(total := future.value()[0])
            return total

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

    def program(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        model.register_comm_hook(None, twice)
        group = dist.new_group([0, 1])
        thread = start(lambda: [dist.barrier(group) for _ in range(3)])
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        thread.join()
        return model.module.weight.grad.tolist()

    for policy, seed in SCHEDULES:
        assert returned(program, 2, policy=policy, seed=seed) == ([[6.0, 6.0]],) * 2


def test_backward_on_a_thread_and_functional_collectives():
    def program(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        seen = []

        def step():
            model(torch.full((1, 2), rank + 1.0)).sum().backward()
            total = functional_collectives.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
            seen.append(total.item())

        start(step).join()
        return model.module.weight.grad.tolist(), seen

    assert returned(program, 2) == (([[1.5, 1.5]], [2.0]),) * 2
