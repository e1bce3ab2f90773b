"""A rank that leaves in the middle is missed wherever the others wait, also inside the Reducer."""

from __future__ import annotations

import pytest
import torch

from ddpsim import Crash, simulate
from tests.ddp_equivalence.engine import DistributedDataParallel, train
from tests.ddp_equivalence.test_plain import OPTIONS
from tests.kit import networks
from tests.kit.leftovers import no_thread_is_left
from tests.kit.training import Training, equal_batches, mean_square, uneven_batches

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]


@pytest.mark.parametrize("name", OPTIONS)
def test_fewer_batches_without_join(name):
    def program(rank):
        model = DistributedDataParallel(networks.multilayer(), **OPTIONS[name])
        for batch in training.batches[rank][rank == 1 :]:
            mean_square(model, batch).backward()

    training = Training(networks.multilayer, equal_batches(3, count=2), mean_square)
    with no_thread_is_left():
        finding = simulate(program, 3).findings[0]
    assert finding.code == "deadlock.missing_rank"
    assert finding.ranks == (1,)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_exception_inside_the_backward(name):
    def program(rank):
        def fail(gradient):
            if rank == 1:
                raise ValueError("a hook of rank 1")
            return gradient

        module = networks.multilayer()
        module[0].bias.register_hook(fail)
        mean_square(model := DistributedDataParallel(module, **OPTIONS[name]), batch).backward()
        mean_square(model, batch).backward()

    batch = equal_batches(1)[0][0]
    result = simulate(program, 3)
    assert list(result.errors) == [1]
    assert [str(finding.code) for finding in result.findings][:2] == ["rank_error", "deadlock.dead_rank"]
    assert simulate(lambda rank: rank, 3).returns == (0, 1, 2)


@pytest.mark.parametrize("is_static", [True, False], ids=["by-initial-world-size", "by-ranks-present"])
@pytest.mark.parametrize("before_call", range(5, 25, 3))
def test_a_crash_under_join(before_call, is_static):
    training = Training(
        networks.with_buffers,
        uneven_batches(3),
        mean_square,
        is_joined=True,
        divide_by_initial_world_size=is_static,
    )
    result = simulate(train, 3, args=(training, {}), faults=[Crash(2, before_call)])
    codes = {str(finding.code) for finding in result.findings}
    assert list(result.errors) == [2]
    assert "rank_error" in codes
    assert torch.is_grad_enabled()
