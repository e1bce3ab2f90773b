"""torchft's lighthouse and managers, and their clients, over stores of torch, which are simulated in ranks.

A server takes one message at a time from a queue in a store of its own, and answers when it can. torchft's managers
send heartbeats all the time. Here the lighthouse asks the managers whether they live, and only while a quorum is waited
for, so that a job that hangs is found. One that does not answer counts as ended at that moment.

Not simulated: the lighthouse's page, `lighthouse_main`, `quorum_retries`, and connections that outlast a `shutdown`.
"""

import json
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from ddpsim.simulator.patches.torchft import quorums
from ddpsim.simulator.patches.torchft.quorums import Joined, Member

_DIST: Any = dist  # whose stubs have no TCPStore
_INBOX = "messages"
_STATUS = "status: {}, details: [], metadata: MetadataMap {{ headers: {{}} }}"


class Server:
    """A server: a thread of the rank that made it, with a store."""

    def __init__(self, bind: str, hostname: str) -> None:
        port = int(bind.rsplit(":", 1)[1])
        self._store: Any = _DIST.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
        self._address = f"http://{hostname}:{self._store.port}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True, name=type(self).__name__)

    def address(self) -> str:
        """Return the server's address."""
        return self._address

    def shutdown(self) -> None:
        """End the server, whose port is free then."""
        if self._store is not None:
            send(self._store, "stop")
            self._thread.join()
            self._store = None

    def serve_forever(self) -> None:
        """Take messages until one says to stop."""
        kind = ""
        while kind != "stop":
            seconds = self._seconds_to_look()
            try:
                if seconds is not None:
                    self._store.wait([_INBOX], timedelta(seconds=seconds))
                message = json.loads(self._store.queue_pop(_INBOX))
            except dist.DistStoreError:  # no message came, also for as long as the store waits by itself
                self._look()
                continue
            kind = message.pop("kind")
            getattr(self, f"_on_{kind}")(**message)

    def _seconds_to_look(self) -> float | None:
        """Return after how long something is due if no message comes; None for never."""
        return None

    def _look(self) -> None:
        """Do what is due."""

    def _on_stop(self) -> None:
        """Do what is to be done before the server ends."""


class Client:
    """A client of a server."""

    def __init__(self, addr: str, connect_timeout: timedelta) -> None:
        host, port = addr.removeprefix("http://").rsplit(":", 1)
        self.store: Any = _DIST.TCPStore(host, int(port), wait_for_workers=False, timeout=connect_timeout)

    def ask(self, kind: str, timeout: timedelta, **what: Any) -> bytes:
        """Send a message and return the answer."""
        key = f"answer {self.store.add('questions', 1)}"
        send(self.store, kind, reply_to=key, **what)
        try:
            self.store.wait([key], timeout)
        except dist.DistStoreError:
            raise TimeoutError(_STATUS.format('Cancelled, message: "Timeout expired"')) from None
        return bytes(self.store.queue_pop(key))

    def _value(self, kind: str, timeout: timedelta, **what: Any) -> Any:
        answer = json.loads(self.ask(kind, timeout, **what))
        if answer["kind"] == "error":
            raise RuntimeError(_STATUS.format(answer["value"]))
        return answer["value"]


def send(store: Any, kind: str, *, to: str = _INBOX, **what: object) -> None:
    """Send a message to a server, or an answer. A server that has ended does not get it."""
    with suppress(dist.DistNetworkError):
        store.queue_push(to, json.dumps({"kind": kind, **what}))


class LighthouseServer(Server):
    """torchft's LighthouseServer."""

    def __init__(self, bind: str, min_replicas: int, **milliseconds: int | None) -> None:
        """Start the server, with torchft's arguments."""
        super().__init__(bind, socket.gethostname())
        given = {name: each for name, each in milliseconds.items() if each is not None}
        self._rules = quorums.Rules(
            min_replicas, given.get("join_timeout_ms", 100) / 1000, given.get("heartbeat_timeout_ms", 5000) / 1000
        )
        self._tick = max(given.get("quorum_tick_ms", 100), 1) / 1000
        self._joined: dict[str, Joined] = {}
        self._waiting: dict[str, tuple[Any, str, float]] = {}
        """By replica that waits for a quorum: to which store and key the answer goes, and until when it waits."""
        self._heartbeats: dict[str, float] = {}
        self._managers: dict[str, Any] = {}
        """By replica, a client of its manager."""
        self._asked: set[str] = set()
        """The replicas that have not said yet that they live."""
        self._quorum_id = 0
        self._previous: tuple[Member, ...] | None = None
        self._thread.start()

    def _seconds_to_look(self) -> float | None:
        now, rules = time.monotonic(), self._rules
        self._waiting = {name: each for name, each in self._waiting.items() if now < each[2]}
        due = [each.at + rules.join_timeout - now for each in self._joined.values()]
        due += [each + rules.heartbeat_timeout - now for each in self._heartbeats.values()]
        return max(self._tick, min((each for each in due if each > 0), default=0.0)) if self._waiting else None

    def _on_heartbeat(self, replica_id: str, address: str = "", reply_to: str = "") -> None:
        self._heartbeats[replica_id] = time.monotonic()
        self._asked.discard(replica_id)
        if address:
            self._managers[replica_id] = Client(address, timedelta(seconds=60)).store
        if reply_to:
            send(self._store, "answer", to=reply_to, value=None)

    def _on_leave(self, replica_id: str) -> None:
        self._heartbeats[replica_id] = time.monotonic()
        self._managers.pop(replica_id, None)

    def _on_quorum(self, member: list[Any], seconds: float, reply_to: str = "") -> None:
        asking, now = Member(*member), time.monotonic()
        store = self._store if reply_to else self._managers[asking.replica_id]
        self._waiting[asking.replica_id] = store, reply_to or _INBOX, now + seconds
        self._heartbeats[asking.replica_id] = now
        self._joined[asking.replica_id] = Joined(now, asking)
        self._look()

    def _look(self) -> None:
        """Form a quorum, or ask all managers whether they live."""
        now, living = time.monotonic(), self._managers.keys() - self._asked
        heartbeats = self._heartbeats | dict.fromkeys(living, now)
        members = quorums.compute_quorum(now, self._joined, heartbeats, self._previous, self._rules)
        if members is None:
            for name in sorted(living):
                self._heartbeats[name] = now
                self._asked.add(name)
                send(self._managers[name], "ping")
            return
        self._quorum_id = quorums.next_quorum_id(self._quorum_id, members, self._previous)
        self._previous, joined, self._joined = members, self._joined, {}
        for name, (store, key, _) in list(self._waiting.items()):
            if joined[name].member in members:
                del self._waiting[name]
                send(store, "answer", to=key, value=(self._quorum_id, members, time.time()))
            else:
                self._joined[name] = joined[name]._replace(at=now)


class LighthouseClient(Client):
    """torchft's LighthouseClient."""

    def quorum(self, replica_id: str, timeout: timedelta, **asked: Any) -> Any:
        """Return the next quorum that has the replica."""
        member, seconds = Member(replica_id, **asked), timeout.total_seconds()
        number, members, created = self._value("quorum", timeout, member=member, seconds=seconds)
        stamp = SimpleNamespace(seconds=int(created), nanos=int(created % 1 * 1e9))
        return SimpleNamespace(quorum_id=number, participants=[Member(*each) for each in members], created=stamp)

    def heartbeat(self, replica_id: str, timeout: timedelta = timedelta(seconds=5)) -> None:
        """Tell the lighthouse that the replica lives."""
        self._value("heartbeat", timeout, replica_id=replica_id)


class ManagerServer(Server):
    """torchft's ManagerServer."""

    def __init__(self, replica_id: str, hostname: str, bind: str, **options: Any) -> None:
        """Start the server, with torchft's arguments."""
        super().__init__(bind, hostname)
        self._lighthouse = Client(options["lighthouse_addr"], options["connect_timeout"]).store
        self._size = options["world_size"]
        self._member = Member(replica_id, self._address, options["store_addr"], world_size=self._size)
        self._metadata: dict[int, str] = {}
        self._joined: set[int] = set()
        self._waiting: list[tuple[str, int, bool]] = []
        """For each rank that waits for a quorum: the key of the answer, its number in the group, and `init_sync`."""
        self._votes: dict[int, bool] = {}
        self._voters: list[str] = []
        self._on_ping(self._address)
        self._thread.start()

    def _on_ping(self, address: str = "") -> None:
        send(self._lighthouse, "heartbeat", replica_id=self._member.replica_id, address=address)

    def _on_stop(self) -> None:
        send(self._lighthouse, "leave", replica_id=self._member.replica_id)

    def _on_quorum(
        self, reply_to: str, seconds: float, group_rank: int, checkpoint_metadata: str, init_sync: bool, **asked: Any
    ) -> None:
        self._metadata[group_rank] = checkpoint_metadata
        self._joined.add(group_rank)
        self._waiting.append((reply_to, group_rank, init_sync))
        if len(self._joined) == self._size:
            self._joined = set()
            send(self._lighthouse, "quorum", member=self._member._replace(**asked), seconds=seconds)

    def _on_answer(self, value: Any) -> None:
        (number, members, _), waiting, self._waiting = value, self._waiting, []
        members = [Member(*each) for each in members]
        for key, rank, init_sync in waiting:
            found = quorums.quorum_result(self._member.replica_id, rank, number, members, init_sync=init_sync)
            send(self._store, "answer", to=key, value=found)

    def _on_should_commit(self, reply_to: str, group_rank: int, vote: bool) -> None:
        self._votes[group_rank] = vote and self._votes.get(group_rank, True)
        self._voters.append(reply_to)
        if len(self._votes) == self._size:
            voters, votes, self._voters, self._votes = self._voters, self._votes, [], {}
            for key in voters:
                send(self._store, "answer", to=key, value=all(votes.values()))

    def _on_checkpoint_metadata(self, reply_to: str, rank: int) -> None:
        if rank in self._metadata:
            send(self._store, "answer", to=reply_to, value=self._metadata[rank])
        else:
            send(self._store, "error", to=reply_to, value='InvalidArgument, message: "rank not found"')


class ManagerClient(Client):
    """torchft's ManagerClient."""

    def _quorum(self, timeout: timedelta, **asked: Any) -> Any:
        return SimpleNamespace(**self._value("quorum", timeout, seconds=timeout.total_seconds(), **asked))

    def _checkpoint_metadata(self, rank: int, timeout: timedelta) -> str:
        return str(self._value("checkpoint_metadata", timeout, rank=rank))

    def should_commit(self, group_rank: int, step: int, should_commit: bool, timeout: timedelta) -> bool:
        """Return whether all ranks of the group are to commit the step."""
        return bool(self._value("should_commit", timeout, group_rank=group_rank, vote=should_commit))
