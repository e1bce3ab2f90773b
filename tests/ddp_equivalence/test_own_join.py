"""What a join of ours can do, and torch's cannot."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel, Join
from tests.ddp_equivalence.engine import check
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks, oracle
from tests.kit.training import Training, assert_same, batches, mean_square, trained

pytestmark = pytest.mark.parametrize("engine_name", ["ddp"], indirect=True)
BUILDERS = (networks.multilayer, networks.with_buffers)


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": TINY}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("counts", [(1, 3, 2), (0, 3), (3, 0, 3)])
def test_two_forwards_before_one_backward(counts, options):
    def program(rank):
        modules = []
        for index, build in enumerate(BUILDERS):
            torch.manual_seed(10 * rank + index)
            modules.append(build())
        models = [DistributedDataParallel(module, **options) for module in modules]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        with Join(models):
            for batch in training.batches[rank]:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                sum(mean_square(model, batch) for model in models).backward()
                for optimizer in optimizers:
                    optimizer.step()
        return [trained(module) for module in modules]

    training = Training(networks.multilayer, batches(*counts), mean_square, is_joined=True)
    result = simulate(program, len(counts))
    result.raise_for_verdict()
    for index, build in enumerate(BUILDERS):
        torch.manual_seed(index)
        alone = Training(build, training.batches, mean_square, is_joined=True)
        for rank, expected in enumerate(oracle.train(alone, build())):
            assert_same(result.returns[rank][index], expected, gradients=False)


def test_a_hook_that_chains_calls_with_several_buckets():
    # Without a rank that follows them one by one, the chains of two buckets race (test_communication_hooks.py).
    def register(model):
        state = PowerSGDState(None, matrix_approximation_rank=5, start_powerSGD_iter=2, min_compression_rate=0)
        model.register_comm_hook(state, powerSGD_hook)

    training = Training(networks.multilayer, batches(0, 4, 4), mean_square, is_joined=True)
    check(training, {"bucket_cap_mb": TINY}, register, tolerance=1e-9)
