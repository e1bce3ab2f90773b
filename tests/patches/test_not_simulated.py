"""torch's fake backend, which is torch's own in a rank; and rpc, which is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc import init_rpc

from ddpsim import UsageError, simulate
from tests.kit.results import returned

BOTH = [pytest.param("thread"), pytest.param("process", marks=pytest.mark.tier("ci"))]


@pytest.mark.parametrize("isolation", BOTH)
def test_the_fake_backend_has_a_world_of_any_size(isolation: Any) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def program(rank: int) -> tuple[int, int, float]:
        dist.destroy_process_group()
        dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
        tensor = torch.ones(1)
        if rank == 0:
            dist.all_reduce(tensor)  # the other one makes no such call
        group = dist.new_group([0, 3, 5])
        dist.barrier(group)
        return dist.get_world_size(), dist.get_rank(group), tensor.item()

    assert returned(program, 2, isolation=isolation) == ((8, 1, 1.0),) * 2


def test_a_fake_group_beside_the_default_one() -> None:
    def program(rank: int) -> float:
        group = dist.new_group([0, 1], backend="fake")
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor)
        return tensor.item()

    assert returned(program, 2) == (2.0, 2.0)


@pytest.mark.parametrize("isolation", BOTH)
@pytest.mark.parametrize("begin", [lambda *args, **options: rpc.init_rpc(*args, **options), init_rpc])
def test_rpc_ends_the_run_with_a_line(begin: Any, isolation: Any) -> None:
    def program(rank: int) -> None:
        begin(f"worker{rank}", rank=rank, world_size=2)

    with pytest.raises(UsageError, match=r"calls torch\.distributed\.rpc\.init_rpc, expected collectives"):
        simulate(program, 2, isolation=isolation)
