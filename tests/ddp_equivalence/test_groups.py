"""Several wrappers in one program, and wrappers on subgroups."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join as TorchJoin

from ddpsim import simulate
from ddpsim.ddp import Join
from tests.ddp_equivalence import engine
from tests.ddp_equivalence.engine import DistributedDataParallel
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks, oracle
from tests.kit.results import returned
from tests.kit.training import Training, assert_each, batches, mean_square, seeded, trained

PAIR = {"first": networks.multilayer, "second": networks.with_buffers}
"""A generator and a critic, say: two wrappers that see the same batches, in one loop."""


def train_pair(rank, training, order, options, join=TorchJoin):
    modules = {name: seeded(build, 10 * rank + index) for index, (name, build) in enumerate(PAIR.items())}
    models = [DistributedDataParallel(module, **options) for module in modules.values()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with join(models) if training.is_joined else nullcontext():
        for batch in training.batches[rank]:
            for optimizer in optimizers:
                optimizer.zero_grad()
            if order == "one backward":
                sum(mean_square(model, batch) for model in models).backward()
            else:
                for model in models:
                    mean_square(model, batch).backward()
            for optimizer in optimizers:
                optimizer.step()
    return {name: trained(module) for name, module in modules.items()}


def check_pair(counts, *how):
    training = Training(networks.multilayer, batches(*counts), mean_square, is_joined=len(set(counts)) > 1)
    returns = returned(train_pair, len(counts), args=(training, *how))
    for index, (name, build) in enumerate(PAIR.items()):
        expected = oracle.train(replace(training, build=build), seeded(build, index))
        assert_each([own[name] for own in returns], expected, gradients=False)


@pytest.mark.parametrize(
    ("counts", "order"),
    [((3, 3, 3), "one backward"), ((3, 3, 3), "two backwards"), ((1, 3, 2), "two backwards")],
    ids=["equal-one-backward", "equal-two-backwards", "uneven-two-backwards"],
)
def test_two_wrappers(counts, order):
    check_pair(counts, order, {"bucket_cap_mb": TINY})


@pytest.mark.parametrize("engine_name", ["ddp"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": TINY}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("counts", [(1, 3, 2), (0, 3), (3, 0, 3)])
def test_our_join_can_shadow_two_forwards_before_one_backward(counts, options):
    check_pair(counts, "one backward", options, Join)


def test_torchs_join_cannot():
    # With either engine. A joined rank shadows the first wrapper's forward and backward, and then the second's.
    training = Training(networks.multilayer, batches(1, 3, 2), mean_square, is_joined=True)
    result = simulate(train_pair, 3, args=(training, "one backward", {"bucket_cap_mb": TINY}))
    assert result.findings[0].code in ("mismatch.operation", "mismatch.origin")


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (1, 3, 4, 2)], ids=["equal", "uneven"])
def test_one_wrapper_for_each_half(counts):
    def program(rank):
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        options = {"process_group": halves[rank // 2], "bucket_cap_mb": TINY}
        return engine.train_model(rank, training, seeded(networks.with_buffers, rank), options)

    training = Training(networks.with_buffers, batches(*counts), mean_square, is_joined=len(set(counts)) > 1)
    returns = returned(program, 4)
    for start in (0, 2):
        own = replace(training, batches=training.batches[start : start + 2])
        expected = oracle.train(own, seeded(networks.with_buffers, start))
        assert_each(returns[start : start + 2], expected, gradients=False)
