"""The lighthouse and the managers that stand for torchft's, in ranks; torchft itself is not needed."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import Crash, simulate
from ddpsim.simulator.patches.torchft.checkpoints import CheckpointServer, open_url
from ddpsim.simulator.patches.torchft.servers import (
    LighthouseClient,
    LighthouseServer,
    ManagerClient,
    ManagerServer,
    send,
)
from tests.kit.results import codes, returned

TICK = 0.1  # how often the lighthouse looks at most, torchft's default
LIMIT = timedelta(seconds=20)
TIMED_OUT = 'status: Cancelled, message: "Timeout expired", details: [], metadata: MetadataMap { headers: {} }'
BOTH = [pytest.param("thread"), pytest.param("process", marks=pytest.mark.tier("ci"))]


def lighthouse_of_rank_0(rank: int, min_replicas: int = 2, **milliseconds: int) -> str:
    """The address of the lighthouse, which rank 0 starts."""
    store = distributed_c10d._get_default_store()
    if rank == 0:
        store.set("lighthouse", LighthouseServer("[::]:0", min_replicas, **milliseconds).address())
    return store.get("lighthouse").decode()


def manager(name: str, lighthouse: str, world_size: int = 1, port: int = 0) -> ManagerServer:
    return ManagerServer(
        replica_id=name,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        bind=f"[::]:{port}",
        store_addr=f"store of {name}",
        world_size=world_size,
        heartbeat_interval=timedelta(seconds=0.1),
        connect_timeout=LIMIT,
        quorum_retries=0,
    )


def client_of(server: ManagerServer) -> ManagerClient:
    return ManagerClient(server.address(), connect_timeout=LIMIT)


def quorum(client: ManagerClient, step: int = 0, group_rank: int = 0, failures: int = 0, seconds: float = 20.0) -> Any:
    return client._quorum(
        group_rank=group_rank,
        step=step,
        checkpoint_metadata=f"checkpoint of {group_rank}",
        shrink_only=False,
        init_sync=True,
        commit_failures=failures,
        timeout=timedelta(seconds=seconds),
    )


@pytest.mark.parametrize("isolation", BOTH)
def test_two_replicas_meet_in_each_step_and_the_second_recovers_from_the_first(isolation: Any) -> None:
    def program(rank: int) -> list[Any]:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank))
        client, seen = client_of(server), []
        for step in range(2):
            found = quorum(client, step)
            source = found.recover_src_manager_address
            where = ManagerClient(source, LIMIT)._checkpoint_metadata(0, LIMIT) if found.heal else ""
            seen.append((found.quorum_id, found.replica_rank, found.replica_ids, found.store_address, where))
            assert client.should_commit(0, step, True, LIMIT)
            dist.barrier()
        return seen

    both, store = ["r0", "r1"], "store of r0"
    first, second = returned(program, 2, isolation=isolation)
    assert first == [(1, 0, both, store, ""), (1, 0, both, store, "")]
    assert second == [(1, 1, both, store, "checkpoint of 0"), (1, 1, both, store, "")]


def test_a_wait_for_a_quorum_and_for_a_vote_ends_in_rusts_error() -> None:
    def program(rank: int) -> list[tuple[str, float]]:
        client, seen = client_of(manager("r", lighthouse_of_rank_0(rank), world_size=2)), []
        waits: tuple[Callable[[], Any], ...] = (
            lambda: quorum(client, seconds=3.0),
            lambda: client.should_commit(0, 0, True, timedelta(seconds=2)),
        )
        for wait in waits:
            start = time.monotonic()
            with pytest.raises(TimeoutError) as error:
                wait()
            seen.append((str(error.value), round(time.monotonic() - start, 3)))
        return seen

    assert returned(program, 1) == ([(TIMED_OUT, 3.0), (TIMED_OUT, 2.0)],)


def test_all_ranks_of_a_group_commit_or_none() -> None:
    def program(rank: int) -> list[bool]:
        store, lighthouse = distributed_c10d._get_default_store(), lighthouse_of_rank_0(rank)
        if rank == 0:
            server = manager("r", lighthouse, world_size=2)
            store.set("manager", server.address())
        client = ManagerClient(store.get("manager").decode(), LIMIT)
        votes = [True, rank == 0, True]
        return [client.should_commit(rank, step, vote, LIMIT) for step, vote in enumerate(votes)]

    assert returned(program, 2) == ([True, False, True],) * 2


def test_a_rank_that_has_not_asked_has_no_checkpoint() -> None:
    def program(rank: int) -> None:
        server = manager("r", lighthouse_of_rank_0(rank))
        with pytest.raises(RuntimeError, match=r'^status: InvalidArgument, message: "rank not found"'):
            client_of(server)._checkpoint_metadata(0, LIMIT)

    returned(program, 1)


def test_a_replica_that_lives_is_waited_for_once() -> None:
    """Three meet. Then two ask, and wait for the third up to the join timeout. Then all of the previous quorum ask."""

    def program(rank: int) -> list[tuple[float, list[str]]]:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank, join_timeout_ms=60_000))
        client, seen = client_of(server), []
        for asking in (3, 2, 2):
            dist.barrier()
            start = time.monotonic()
            if rank < asking:
                found = quorum(client, seconds=120.0)
                seen.append((round(time.monotonic() - start), found.replica_ids))
        return seen

    pair, three = ["r0", "r1"], ["r0", "r1", "r2"]
    seen = [(0, three), (60, pair), (0, pair)]
    assert returned(program, 3) == (seen, seen, seen[:1])


def test_one_that_has_left_counts_until_its_heartbeat_is_old() -> None:
    def program(rank: int) -> Any:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank, 1, join_timeout_ms=60_000))
        client = client_of(server)
        quorum(client)
        if rank == 2:
            server.shutdown()
        dist.barrier()
        start = time.monotonic()
        return None if rank == 2 else (quorum(client, 1).replica_ids, time.monotonic() - start)

    (names, seconds), second, third = returned(program, 3)
    assert (names, second[0], third) == (["r0", "r1"], ["r0", "r1"], None)
    assert 5.0 <= seconds <= 5.0 + TICK


def test_a_replica_that_was_killed_is_missed_after_the_time_of_a_heartbeat() -> None:
    def program(rank: int) -> Any:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank, 1, join_timeout_ms=60_000, heartbeat_timeout_ms=2_000))
        client = client_of(server)
        quorum(client)
        if rank == 2:
            dist.all_reduce(torch.ones(1))
        start = time.monotonic()
        return quorum(client, 1).replica_ids, time.monotonic() - start

    result = simulate(program, 3, faults=[Crash(rank=2, before_call=0)])
    assert codes(result) == [("rank_error", (2,))]
    for rank in (0, 1):
        names, seconds = result.returns[rank]
        assert names == ["r0", "r1"]
        assert 2.0 <= seconds <= 2.0 + TICK


def test_a_replica_that_was_killed_while_it_asked_is_in_no_quorum() -> None:
    def program(rank: int) -> Any:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank, 2, join_timeout_ms=60_000, heartbeat_timeout_ms=2_000))
        client = client_of(server)
        if rank == 2:
            Thread(target=quorum, args=(client,), daemon=True).start()
            time.sleep(1)
            dist.all_reduce(torch.ones(1))
        time.sleep(10)
        return quorum(client, seconds=30.0).replica_ids

    result = simulate(program, 3, faults=[Crash(rank=2, before_call=0)])
    assert [code for code, _ in codes(result)] == ["rank_error"]
    assert result.returns[:2] == (["r0", "r1"],) * 2


@pytest.mark.parametrize(("fate", "least"), [("lives", 60.0), ("was killed", 5.0), ("left", 0.0)])
def test_after_a_long_time_of_silence_a_replica_is_waited_for_if_it_may_live(fate: str, least: float) -> None:
    def program(rank: int) -> float:
        client = LighthouseClient(lighthouse_of_rank_0(rank, 1, join_timeout_ms=60_000), LIMIT)
        server = manager(f"r{rank}", distributed_c10d._get_default_store().get("lighthouse").decode())
        dist.barrier()
        if rank == 2 and fate == "was killed":
            raise KeyError
        if rank == 2 and fate == "left":
            server.shutdown()
        time.sleep(200 if rank < 2 else 400)
        start = time.monotonic()
        if rank < 2:
            client.quorum(f"r{rank}", timedelta(seconds=100))
        return time.monotonic() - start

    result = simulate(program, 3)
    assert [code for code, _ in codes(result)] == (["rank_error"] if fate == "was killed" else [])
    assert result.returns[:2] == pytest.approx((least, least), abs=1.5 * TICK)


def test_a_lighthouse_that_nobody_asks_any_more_does_nothing() -> None:
    def program(rank: int) -> None:
        client = client_of(manager("r", lighthouse_of_rank_0(rank)))
        with pytest.raises(TimeoutError):
            quorum(client, seconds=1.0)
        time.sleep(100_000)

    result = simulate(program, 1)
    result.raise_for_verdict()
    assert len(result.trace.events) < 10_000  # one look in the 300 s for which a store waits by itself


def test_a_group_asks_in_each_step_when_all_its_ranks_have_asked() -> None:
    def program(rank: int) -> list[float]:
        store, lighthouse = distributed_c10d._get_default_store(), lighthouse_of_rank_0(rank, 1)
        if rank == 0:
            server = manager("r", lighthouse, world_size=2)
            store.set("manager", server.address())
        client, waited = ManagerClient(store.get("manager").decode(), LIMIT), []
        for step in range(2):
            dist.barrier()
            time.sleep(5 * rank)
            start = time.monotonic()
            quorum(client, step, group_rank=rank)
            waited.append(round(time.monotonic() - start, 1))
        return waited

    assert returned(program, 2) == ([5.0, 5.0], [0.0, 0.0])


def test_what_is_sent_to_a_server_that_has_ended_is_lost() -> None:
    class Ended:
        def queue_push(self, key: str, value: str) -> None:
            raise dist.DistNetworkError("Broken pipe")

    send(Ended(), "ping")


def test_a_failed_commit_makes_a_new_quorum_of_the_same_replicas() -> None:
    def program(rank: int) -> list[int]:
        client = client_of(manager(f"r{rank}", lighthouse_of_rank_0(rank)))
        return [quorum(client, 1, failures=rank * failures).quorum_id for failures in (0, 0, 2, 0)]

    assert returned(program, 2) == ([1, 1, 2, 2],) * 2


def test_one_that_joins_while_others_shrink_is_in_the_quorum_after() -> None:
    def program(rank: int) -> list[tuple[int, list[str]]]:
        client, seen = LighthouseClient(lighthouse_of_rank_0(rank, join_timeout_ms=1000), LIMIT), []
        if rank == 2:
            time.sleep(1.5)
        for step in range(3):
            if rank < 2 or step == 0:
                found = client.quorum(
                    f"r{rank}", LIMIT, step=step, shrink_only=rank == 0 and step == 1, data={"k": rank}
                )
                seen.append((found.quorum_id, [each.replica_id for each in found.participants]))
                assert [each.data for each in found.participants] == [
                    {"k": at} for at in range(len(found.participants))
                ]
            if rank < 2 and step == 0:
                time.sleep(2)
        return seen

    pair, three = (1, ["r0", "r1"]), (2, ["r0", "r1", "r2"])
    assert returned(program, 3) == ([pair, pair, three], [pair, pair, three], [three])


def test_a_heartbeat_alone_keeps_a_replica_waited_for() -> None:
    def program(rank: int) -> tuple[float, int, int]:
        client = LighthouseClient(lighthouse_of_rank_0(rank, 1, join_timeout_ms=1000, quorum_tick_ms=10), LIMIT)
        client.heartbeat("b")
        client.heartbeat("c")
        start = time.monotonic()
        with pytest.raises(TimeoutError):  # one of three, which are never half of those that live
            client.quorum("a", timedelta(seconds=4))
        found = client.quorum("a", LIMIT)
        return time.monotonic() - start, found.created.seconds - int(time.time()), found.created.nanos

    [(seconds, created, nanos)] = returned(program, 1)
    assert 5.0 <= seconds <= 5.0 + 0.01
    assert (created, nanos // 10**9) == (0, 0)


def test_the_port_of_a_server_is_taken_until_its_shutdown() -> None:
    def program(rank: int) -> None:
        lighthouse = lighthouse_of_rank_0(rank, 1)
        server = manager("r", lighthouse, port=19_530)
        assert server.address() == "http://localhost:19530"
        with pytest.raises(RuntimeError, match="address already in use"):
            manager("s", lighthouse, port=19_530)
        server.shutdown()
        server.shutdown()
        assert quorum(client_of(manager("s", lighthouse, port=19_530))).replica_ids == ["s"]

    returned(program, 1)


def test_a_server_that_is_idle_longer_than_its_store_waits_still_serves() -> None:
    def program(rank: int) -> list[str]:
        client = client_of(manager("r", lighthouse_of_rank_0(rank, 1)))
        time.sleep(1000)
        return list(quorum(client).replica_ids)

    assert returned(program, 1) == (["r"],)


def test_no_lighthouse_at_the_address() -> None:
    def program(rank: int) -> None:
        with pytest.raises(RuntimeError, match=r"timed out after 20000ms while trying to connect to \(nobody, 1\)"):
            manager("r", "http://nobody:1")

    returned(program, 1)


def test_idle_servers_do_not_hide_a_deadlock() -> None:
    def program(rank: int) -> None:
        server = manager(f"r{rank}", lighthouse_of_rank_0(rank))
        quorum(client_of(server))
        if rank == 0:
            dist.barrier()

    assert ("deadlock.missing_rank", (1,)) in codes(simulate(program, 2))


class Handler(BaseHTTPRequestHandler):
    timeout = 7

    def do_GET(self) -> None:
        assert self.connection.gettimeout() == 7
        if self.path != "/checkpoint/3/full":
            self.send_error(400, "another step")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"\x00weights")

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.mark.parametrize("isolation", BOTH)
def test_a_handler_answers_another_rank_without_a_socket(isolation: Any) -> None:
    def program(rank: int) -> bytes:
        store = distributed_c10d._get_default_store()
        if rank == 0:
            server = CheckpointServer(("", 0), Handler)
            thread = Thread(target=server.serve_forever, daemon=True)
            thread.start()
            store.set("port", str(server.socket.getsockname()[1]))
            dist.barrier()
            server.shutdown()
            thread.join()
            return b""
        place = f"http://localhost:{store.get('port').decode()}/checkpoint"
        with open_url(f"{place}/3/full", timeout=1.0) as answer:
            found = answer.read()
        with pytest.raises(urllib.error.HTTPError, match="HTTP Error 400: another step"):
            open_url(f"{place}/4/full", timeout=1.0)
        dist.barrier()
        return bytes(found)

    assert returned(program, 2, isolation=isolation) == (b"", b"\x00weights")
