"""The same numbers to the last bit under every schedule."""

from __future__ import annotations

import pytest

from ddpsim import simulate
from tests.ddp_equivalence.engine import train
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks
from tests.kit.training import Training, assert_same, equal_batches, mean_square, uneven_batches

pytestmark = pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified")

CASES = {
    "plain": (Training(networks.multilayer, equal_batches(3), mean_square), {"bucket_cap_mb": TINY}),
    "join": (Training(networks.with_buffers, uneven_batches(4), mean_square, is_joined=True), {}),
    "static": (Training(networks.multilayer, equal_batches(3), mean_square), {"static_graph": True}),
    "unused": (
        Training(networks.branching, networks.branches((0, 1, 2), (0, 2, 1), (1, 2, 2)), mean_square),
        {"find_unused_parameters": True},
    ),
    "divide-by-present": (
        Training(
            networks.multilayer, uneven_batches(3), mean_square, is_joined=True, divide_by_initial_world_size=False
        ),
        {"gradient_as_bucket_view": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_do_not_depend_on_the_schedule(name):
    training, options = CASES[name]
    results = [simulate(train, training.world_size, args=(training, options))]
    results += [
        simulate(train, training.world_size, args=(training, options), policy="random", seed=seed) for seed in range(5)
    ]
    for result in results:
        result.raise_for_verdict()
        for actual, expected in zip(result.returns, results[0].returns, strict=True):
            assert_same(actual, expected, tolerance=0.0)
    assert len({str(result.schedule) for result in results}) == 6
