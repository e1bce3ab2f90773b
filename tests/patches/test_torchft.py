"""torchft itself, simulated: its own integration tests, and replicas that fail, beside the same on its own servers."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import simulate
from tests.kit.results import codes, returned
from tests.outside import not_installed

ABSENT = not_installed("torchft")
pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.filterwarnings("ignore"),  # torchft takes one that is raised for a failure
    pytest.mark.skipif(ABSENT is not None, reason=ABSENT or ""),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torchft logs what goes wrong, which is the subject here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# --- torchft's own integration tests ----------------------------------------------------------------------------------

OF_MANAGER = ["ddp_healthy", "ddp_recovery_0_async_quorum", "ddp_recovery_1_sync_quorum", "ddp_skip_init_sync"]
OF_MANAGER += ["ddp_recovery_multi_rank", "quorum_timeout", "manager_allreduce_1"]
OF_LOCAL_SGD = ["local_sgd_recovery_0", "diloco_healthy_0", "diloco_recovery_0", "streaming_diloco_recovery_0"]
OF_LOCAL_SGD += [
    f"streaming_diloco_{name}_{number:02}" for name in ("upscale", "commit_failure") for number in range(12)
]
CASES = [("manager_integ_test", "ManagerIntegTest", name) for name in OF_MANAGER]
CASES += [("local_sgd_integ_test", "LocalSGDIntegTest", name) for name in OF_LOCAL_SGD]


class PoolOfRanks:
    """The pool in which such a test runs its replicas: each gets a rank."""

    def __init__(self, work: dict[int, tuple[Future[Any], Callable[[], Any]]], **_: Any) -> None:
        self.work, self.store = work, distributed_c10d._get_default_store()

    def __enter__(self) -> PoolOfRanks:
        return self

    def __exit__(self, *error: object) -> None:
        for future, _ in self.work.values():
            future.exception()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        number, future = len(self.work) + 1, Future[Any]()
        self.work[number] = future, lambda: function(*arguments, **options)
        self.store.set(f"work of {number}", b"1")
        return future


@pytest.mark.parametrize(("module", "kind", "name"), CASES, ids=[name for *_, name in CASES])
def test_a_test_of_torchfts_own(module: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("parameterized")
    tests = importlib.import_module(f"torchft.{module}")
    work: dict[int, tuple[Future[Any], Callable[[], Any]]] = {}
    replicas = 3 if "upscale" in name else 2

    def make_pool(*, thread_name_prefix: str = "", **options: Any) -> Any:
        """A pool of replicas, or the threads of one replica."""
        if thread_name_prefix:
            return ThreadPoolExecutor(thread_name_prefix=thread_name_prefix, **options)
        return PoolOfRanks(work)

    def program(rank: int) -> None:
        store = distributed_c10d._get_default_store()
        if rank == 0:
            getattr(tests, kind)(f"test_{name}").debug()
            for number in range(len(work), replicas):
                store.set(f"work of {number + 1}", b"0")
        elif store.get(f"work of {rank}") == b"1":
            future, call = work[rank]
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
                raise

    for each in ("manager_integ_test", module):
        monkeypatch.setattr(f"torchft.{each}.ThreadPoolExecutor", make_pool)
    returned(program, replicas + 1)


# --- the same program on torchft's own servers ------------------------------------------------------------------------


class Failure(Exception):
    """What ends a replica."""


def on_threads(train: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What two replicas return or raise as threads of this process, with torchft's own servers and gloo."""
    import torchft.coordination

    server = torchft.coordination.LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(train, replica, server.address(), *arguments) for replica in range(2)]
    server.shutdown()
    return [future.exception() or future.result() for future in futures]


def on_ranks(train: Callable[..., Any], *arguments: Any) -> Callable[[int], Any]:
    """A program in which each rank is a replica."""

    def program(rank: int) -> Any:
        import torchft.coordination

        store = distributed_c10d._get_default_store()
        if rank == 0:
            server = torchft.coordination.LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000)
            store.set("lighthouse", server.address())
        found = train(rank, store.get("lighthouse").decode(), *arguments)
        dist.barrier()
        return found

    return program


def replica(number: int, lighthouse: str, averages: str, fails_at: int) -> list[torch.Tensor]:
    """Train; replica 1 fails once, and is started again with other weights, at first."""
    try:
        return train_once(number, lighthouse, averages, fails_at if number == 1 else -1)
    except Failure:
        return train_once(number, lighthouse, averages, -1)


def train_once(number: int, lighthouse: str, averages: str, fails_at: int) -> list[torch.Tensor]:
    import torchft

    def load_state_dict(state: Any) -> None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=2)),
        min_replica_size=2,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica_{number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        use_async_quorum=False,
    )
    generator = torch.Generator().manual_seed(number + 10 * (fails_at < 0))
    network = torch.nn.Linear(4, 2)
    for each in network.parameters():
        each.data = torch.randn(each.shape, generator=generator)
    model = torchft.DistributedDataParallel(manager, network) if averages == "ddp" else network
    optimizer = torchft.Optimizer(manager, torch.optim.AdamW(network.parameters(), lr=0.1))
    try:
        while manager.current_step() < 5:
            optimizer.zero_grad()
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * manager.current_step() + number))
            if manager.current_step() == fails_at:
                raise Failure
            model(inputs).square().mean().backward()
            if averages == "own":
                for each in network.parameters():
                    assert each.grad is not None
                    manager.allreduce(each.grad).wait()
            optimizer.step()
        return [each.detach().clone() for each in network.parameters()]
    finally:
        manager.shutdown(wait=False)


@pytest.mark.parametrize(("averages", "fails_at"), [("ddp", -1), ("own", -1), ("own", 0), ("own", 3)])
def test_parameters_are_those_of_torchfts_own_servers(averages: str, fails_at: int) -> None:
    expected = on_threads(replica, averages, fails_at)
    found = returned(on_ranks(replica, averages, fails_at), 2)
    for of_replica in (*expected[1:], *found):
        assert all(map(torch.equal, of_replica, expected[0]))


def test_a_replica_whose_peer_fails_in_a_collective_ends_here_as_there_with_torchfts_ddp() -> None:
    """torchft 0.2.0 asks the hook of its DDP for a future that a failed call has not."""
    survivor, _ = on_threads(replica, "ddp", 3)
    assert isinstance(survivor, AssertionError)
    result = simulate(on_ranks(replica, "ddp", 3), 2)
    assert isinstance(result.errors[0], AssertionError)
    assert ("rank_error", (0,)) in codes(result)
