"""Many ranks in one process."""

from __future__ import annotations

import pytest

from tests.ddp_equivalence.engine import check
from tests.kit import networks
from tests.kit.training import Training, equal_batches, mean_square, uneven_batches
from tests.tiers import sweep


@pytest.mark.parametrize("world_size", sweep([32, 256], lambda size: size == 32))
def test_plain(world_size):
    check(Training(networks.multilayer, equal_batches(world_size, count=1), mean_square))


@pytest.mark.parametrize("divides_by_all", sweep([True, False], lambda by_all: not by_all))
def test_join_of_32(divides_by_all):
    check(
        Training(
            networks.with_buffers,
            uneven_batches(32),
            mean_square,
            is_joined=True,
            divide_by_initial_world_size=divides_by_all,
        )
    )
