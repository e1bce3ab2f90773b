"""Several wrappers in one program, and wrappers on subgroups."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from ddpsim import simulate
from tests.ddp_equivalence import engine
from tests.ddp_equivalence.engine import DistributedDataParallel, expectation
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks, oracle
from tests.kit.training import Training, assert_same, batches, equal_batches, mean_square, trained


def train_pair(rank, training, order):
    """A generator and a critic, say: two wrappers that see the same batches, in one loop."""
    modules = {}
    for index, (name, build) in enumerate((("first", networks.multilayer), ("second", networks.with_buffers))):
        torch.manual_seed(10 * rank + index)
        modules[name] = build()
    models = {name: DistributedDataParallel(module, bucket_cap_mb=TINY) for name, module in modules.items()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    with Join(list(models.values()), enable=training.is_joined):
        for batch in training.batches[rank]:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            if order == "one backward":
                sum(mean_square(model, batch) for model in models.values()).backward()
            else:
                for model in models.values():
                    mean_square(model, batch).backward()
            for optimizer in optimizers.values():
                optimizer.step()
    return {name: trained(module) for name, module in modules.items()}


@pytest.mark.parametrize(
    ("counts", "order"),
    [((3, 3, 3), "one backward"), ((3, 3, 3), "two backwards"), ((1, 3, 2), "two backwards")],
    ids=["equal-one-backward", "equal-two-backwards", "uneven-two-backwards"],
)
def test_two_wrappers(counts, order):
    training = Training(networks.multilayer, batches(*counts), mean_square, is_joined=len(set(counts)) > 1)
    result = simulate(train_pair, 3, args=(training, order))
    result.raise_for_verdict()
    for index, (name, build) in enumerate((("first", networks.multilayer), ("second", networks.with_buffers))):
        alone = Training(build, training.batches, mean_square, is_joined=training.is_joined)
        with torch.random.fork_rng():
            torch.manual_seed(index)
            module = build()
        for rank, expected in enumerate(oracle.train(alone, module)):
            assert_same(result.returns[rank][name], expected, gradients=False)


def test_join_cannot_shadow_two_forwards_before_one_backward():
    # That is torch's Join, with either engine; ours can (tests/ddp_equivalence/test_own_join.py).
    # A joined rank shadows the first wrapper's forward and backward, and then the second's.
    training = Training(networks.multilayer, batches(1, 3, 2), mean_square, is_joined=True)
    result = simulate(train_pair, 3, args=(training, "one backward"))
    assert result.findings[0].code in ("mismatch.operation", "mismatch.origin")


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (1, 3, 4, 2)], ids=["equal", "uneven"])
def test_one_wrapper_for_each_half(counts):
    def program(rank):
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        torch.manual_seed(rank)
        return engine.train_model(
            rank, training, networks.with_buffers(), {"process_group": halves[rank // 2], "bucket_cap_mb": TINY}
        )

    training = Training(networks.with_buffers, batches(*counts), mean_square, is_joined=len(set(counts)) > 1)
    result = simulate(program, 4)
    result.raise_for_verdict()
    for start in (0, 2):
        own = Training(
            networks.with_buffers, training.batches[start : start + 2], mean_square, is_joined=training.is_joined
        )
        with torch.random.fork_rng():
            torch.manual_seed(start)
            module = networks.with_buffers()
        for rank, expected in enumerate(oracle.train(own, module), start=start):
            assert_same(result.returns[rank], expected, gradients=False)


def test_a_wrapper_on_some_ranks_only():
    def program(rank):
        group = dist.new_group([3, 1])
        if rank in (1, 3):
            torch.manual_seed(rank)
            own = Training(networks.multilayer, {1: training.batches[0], 3: training.batches[1]}, mean_square)
            actual = engine.train_model(rank, own, networks.multilayer(), {"process_group": group})
        total = torch.ones(1)
        dist.all_reduce(total)
        return (actual if rank in (1, 3) else None), total.item()

    training = Training(networks.multilayer, equal_batches(2), mean_square)
    result = simulate(program, 4)
    result.raise_for_verdict()
    with torch.random.fork_rng():
        torch.manual_seed(1)  # new_group sorts its ranks, so global rank 1 is group rank 0
        module = networks.multilayer()
    expected = oracle.train(training, module)
    assert [total for _, total in result.returns] == [4.0] * 4
    assert_same(result.returns[1][0], expected[0])
    assert_same(result.returns[3][0], expected[1])


def test_metrics_between_the_steps():
    def program(rank):
        torch.manual_seed(rank)
        module = networks.multilayer()
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        means = []
        for batch in training.batches[rank]:
            optimizer.zero_grad()
            loss = mean_square(model, batch)
            work = dist.all_reduce(mean := loss.detach().clone(), async_op=True)
            loss.backward()
            optimizer.step()
            work.wait()
            means.append(mean / 3)
        gathered = [None] * 3
        dist.all_gather_object(gathered, rank)
        return trained(module), means, gathered

    training = Training(networks.multilayer, equal_batches(3), mean_square)
    result = simulate(program, 3)
    result.raise_for_verdict()
    for (actual, means, gathered), expected in zip(result.returns, expectation(training), strict=True):
        assert_same(actual, expected)
        assert gathered == [0, 1, 2]
        assert means == result.returns[0][1]
