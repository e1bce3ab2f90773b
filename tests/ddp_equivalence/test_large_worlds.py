"""Many ranks in one process."""

from __future__ import annotations

import pytest

from tests.ddp_equivalence.engine import check
from tests.kit import networks
from tests.kit.training import Training, equal_batches, mean_square, uneven_batches


@pytest.mark.parametrize("world_size", [32, 256])
def test_plain(world_size):
    check(Training(networks.multilayer, equal_batches(world_size, count=1), mean_square))


@pytest.mark.parametrize("is_static", [True, False], ids=["by-initial-world-size", "by-ranks-present"])
def test_join_of_32(is_static):
    check(
        Training(
            networks.with_buffers,
            uneven_batches(32),
            mean_square,
            is_joined=True,
            divide_by_initial_world_size=is_static,
        )
    )
