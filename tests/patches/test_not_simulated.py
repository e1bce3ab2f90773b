"""torch's fake backend, which is torch's own in a rank; rpc, which is refused; DeepSpeed's own shared memory."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
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


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("isolation", BOTH)
def test_deepspeed_has_no_shared_memory_of_its_own_in_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Any, is_loaded: bool
) -> None:
    (tmp_path / "deepspeed" / "comm").mkdir(parents=True)
    (tmp_path / "deepspeed" / "comm" / "torch.py").write_text("def build_shm_op():\n    return 'waits in C++'\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "deepspeed.comm.torch"
    if is_loaded:
        importlib.import_module(name)

    def program(rank: int) -> Any:
        return importlib.import_module(name).build_shm_op()

    assert returned(program, 2, isolation=isolation) == (None, None)
    assert importlib.import_module(name).build_shm_op() == "waits in C++"
    assert not any(type(finder).__module__.startswith("ddpsim") for finder in sys.meta_path)
    for each in (name, "deepspeed.comm", "deepspeed"):
        del sys.modules[each]
