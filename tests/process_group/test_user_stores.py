"""Stores that a rank makes where ranks are threads; of processes: tests/rank_processes/test_stores.py."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import Verdict, explore, simulate
from ddpsim.simulator.process_group.store import SimulatedStore
from tests.kit.results import returned

KINDS = ["file", "tcp", "hash"]


def _store(kind: str, path: Path, rank: int) -> Any:
    if kind == "file":
        return dist.FileStore(str(path / "store"), 2)
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", 29755, 2, is_master=rank == 0, timeout=timedelta(seconds=20))
    return dist.HashStore()


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_a_get_waits_for_another_rank(kind: str, policy: Any, tmp_path: Path) -> None:
    def program(rank: int) -> bytes:
        store = _store(kind, tmp_path, rank)
        if rank == 1:
            store.set("key", "value")
        return bytes(store.get("key"))

    assert returned(program, 2, policy=policy) == (b"value", b"value")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_never_comes_ends_the_run(kind: str, tmp_path: Path) -> None:
    (finding, *_) = simulate(lambda rank: _store(kind, tmp_path, rank).get("key"), 2).findings
    assert finding.code in ("deadlock.missing_rank", "deadlock.cycle", "rank_error")


def test_a_hash_store_is_of_one_rank() -> None:
    def program(rank: int) -> int:
        store = dist.HashStore()
        dist.barrier()
        return int(store.add("n", rank + 1))

    assert simulate(program, 2).returns == (1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_default_group_made_with_a_file_store_has_a_store_that_waits(seed: int, tmp_path: Path) -> None:
    def program(rank: int) -> tuple[bytes, float]:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "x"), 2), rank=rank, world_size=2)
        store = distributed_c10d._get_default_store()
        if rank == 1:
            store.set("key", "value")
        total = torch.ones(1)
        dist.all_reduce(total)
        return store.get("key"), total.item()

    assert returned(program, 2, policy="random", seed=seed) == ((b"value", 2.0),) * 2


def test_a_real_store_from_before_the_run_makes_a_group_that_waits() -> None:
    outside = dist.HashStore()

    def program(rank: int) -> bytes:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=outside, rank=rank, world_size=2)
        store = distributed_c10d._get_default_store()
        if rank == 1:
            store.set("key", "value")
        return store.get("key")

    assert simulate(program, 2).returns == (b"value", b"value")


@pytest.mark.parametrize(
    ("names", "removes", "passes"), [("aa", False, False), ("ab", False, True), ("aa", True, True)]
)
def test_a_second_group_on_a_file_meets_what_the_first_left(
    names: str, removes: bool, passes: bool, tmp_path: Path
) -> None:
    def program(rank: int) -> None:
        for name in names:
            dist.destroy_process_group()
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{name}", rank=rank, world_size=2)
            if removes and rank == 0:
                (tmp_path / name).unlink()
            dist.barrier()

    result = simulate(program, 2)
    assert (result.verdict is Verdict.PASS) is passes, str(result)
    assert passes or "the store still has rank" in result.findings[0].body


def test_a_second_default_group_is_not_all_covered() -> None:
    def program(rank: int) -> None:
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        dist.barrier()

    found = explore(program, 2)
    assert found.verdict is Verdict.PASS
    assert "was not tested for a second default group, which may meet rank 0's old store" in str(found)


def test_ranks_with_unlike_prefixes_do_not_meet(tmp_path: Path) -> None:
    def program(rank: int) -> None:
        dist.destroy_process_group()
        store = dist.PrefixStore(f"of {rank}", _store("tcp", tmp_path, rank))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

    assert [str(finding.code) for finding in simulate(program, 2).findings] == ["deadlock.cycle"]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_group_of_the_same_name_meets_what_the_first_left(backend: str) -> None:
    def program(rank: int, is_named_by_members: bool) -> None:
        for _ in range(2):
            group = dist.new_group([0, 1], backend=backend, use_local_synchronization=is_named_by_members)
            dist.barrier(group)
            dist.destroy_process_group(group)

    for is_named_by_members in (True, False):
        verdicts = {
            simulate(program, 2, args=(is_named_by_members,), policy="random", seed=seed).verdict for seed in range(5)
        }
        assert (Verdict.FAIL in verdicts) is is_named_by_members


def test_outside_and_afterwards_torchs_classes_make_their_own(tmp_path: Path) -> None:
    class Own(dist.FileStore):
        """A program's."""

    def program(rank: int) -> tuple[bool, bool]:
        own = Own(str(tmp_path / f"own{rank}"), 1)
        return isinstance(dist.HashStore(), SimulatedStore), isinstance(own, SimulatedStore)

    assert simulate(program, 2).returns == ((True, False), (True, False))
    assert type(dist.HashStore()) is dist.HashStore
    assert type(dist.FileStore(str(tmp_path / "file"), 1)) is dist.FileStore


@pytest.mark.tier("ci")
def test_both_isolations_have_the_same_digest(tmp_path: Path) -> None:
    def program(rank: int) -> bytes:
        stores = [_store(kind, tmp_path, rank) for kind in KINDS]
        for store in stores:
            store.set(f"of {rank}", "value")
        return bytes(stores[0].get(f"of {1 - rank}"))

    threads, processes = (simulate(program, 2, isolation=each) for each in ("thread", "process"))
    assert threads.verdict is Verdict.PASS
    assert threads.trace.digest() == processes.trace.digest()
