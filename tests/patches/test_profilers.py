"""torch's profiler on ranks that are threads: one at a time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from ddpsim import UsageError, simulate
from tests.kit.results import returned


def test_a_second_rank_that_profiles_ends_the_run_with_a_line() -> None:
    def program(rank: int) -> None:
        with torch.autograd.profiler.profile():
            dist.all_reduce(torch.ones(2))

    for _ in range(2):  # the first run has left nothing
        with pytest.raises(UsageError, match="rank 1 starts torch's profiler while rank 0 profiles"):
            simulate(program, 2)


def test_ranks_profile_one_after_another() -> None:
    def program(rank: int) -> int:
        for each in range(2):
            if each == rank:
                with torch.profiler.profile() as profiled:
                    torch.ones(3).add(1)
                    dist.broadcast(torch.ones(1), 0)
            else:
                dist.broadcast(torch.ones(1), 0)
            dist.barrier()
        return sum(event.name == "c10d::broadcast_" for event in profiled.events())

    assert returned(program, 2) == (1, 1)
