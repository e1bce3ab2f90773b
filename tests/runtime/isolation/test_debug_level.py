"""The debug level of torch.distributed, and what torch.fx has replaced while it traces: a rank's own."""

from __future__ import annotations

import pytest
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.fx.experimental.proxy_tensor import make_fx

from ddpsim import simulate
from tests.kit.results import returned

SEEDS = range(8)


@pytest.mark.parametrize("module", [dist, c10d], ids=["torch.distributed", "torch._C"])
def test_each_rank_has_its_debug_level(module: object) -> None:
    def program(rank: int) -> list[str]:
        seen = []
        for level in (dist.DebugLevel.DETAIL, dist.DebugLevel.INFO):
            if rank == 0:
                module.set_debug_level(level)  # type: ignore[attr-defined]
            dist.barrier()
            seen.append(dist.get_debug_level().name)
        return seen

    before, setter = dist.get_debug_level(), dist.set_debug_level
    assert returned(program, 2, policy="random") == (["DETAIL", "INFO"], ["OFF", "OFF"])
    assert dist.get_debug_level() == before
    assert dist.set_debug_level is setter


def test_the_debug_level_of_before_is_there_in_a_rank_and_afterwards() -> None:
    dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        assert simulate(lambda rank: dist.get_debug_level().name, 2).returns == ("INFO", "INFO")
        assert dist.get_debug_level() == dist.DebugLevel.INFO
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_trace_a_collective_beside_each_other(seed: int) -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1

    def program(rank: int) -> int:
        return len(make_fx(step)(torch.rand(4)).graph.nodes)

    assert returned(program, 2, policy="random", seed=seed) == (5, 5)


def test_a_rank_that_does_not_trace_finds_functions_as_they_are() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.barrier()  # the other one runs while everything is replaced
            dist.barrier()
            return x + 1

    original = torch.nn.Module.__call__

    def program(rank: int) -> bool:
        if rank == 0:
            return len(list(torch.fx.Tracer().trace(Layer()).nodes)) == 3
        dist.barrier()
        found = torch.nn.Module.__call__ is original
        dist.barrier()
        return found

    assert returned(program, 2) == (True, True)
    assert torch.nn.Module.__call__ is original
