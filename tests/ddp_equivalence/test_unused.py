"""Parameters that some ranks, or all, do not use in a step."""

from __future__ import annotations

from itertools import product

import pytest

from tests.ddp_equivalence.engine import check, expectation, simulated
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks
from tests.kit.training import Training, assert_each, mean_square
from tests.tiers import sweep

UNUSED = pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "bucket_cap_mb": TINY},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    ],
    ids=["defaults", "tiny-buckets", "gradient-views"],
)


BRANCHES = {
    "same-on-all": ((0, 0), (0, 0)),
    "differs-by-rank": ((0, 1), (1, 0)),
    "differs-by-rank-and-step": ((0, 1, 2), (0, 2, 1), (1, 2, 2)),
    "none-on-some": ((0, 9), (9, 9), (9, 1)),
    "none-anywhere": ((9, 9), (9, 9)),
}


@UNUSED
@pytest.mark.parametrize(
    ("name", "set_to_none"),
    sweep(product(BRANCHES, (True, False)), lambda case: case[1] or case[0] == "differs-by-rank-and-step"),
)
def test_branches(name, set_to_none, options):
    given = networks.branches(*BRANCHES[name])
    check(Training(networks.branching, given, mean_square, set_to_none=set_to_none), options)


@UNUSED
@pytest.mark.parametrize("is_static", [True, False], ids=["by-initial-world-size", "by-ranks-present"])
@pytest.mark.parametrize("branches", [((0,), (1, 2, 0)), ((), (0, 9), (1, 2)), ((2, 0, 1), (1,), (0, 0))])
def test_join(branches, is_static, options):
    training = Training(
        networks.branching,
        networks.branches(*branches),
        mean_square,
        is_joined=True,
        divide_by_initial_world_size=is_static,
    )
    assert_each(simulated(training, options).returns, expectation(training), gradients=False)
