"""One rank, in the process forked for it: join the group, run the function, say what came of it, wait to be ended."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.pool import messages


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in its job."""

    rank: int
    world_size: int
    store: int
    """Descriptor of the file that the ranks find each other by."""
    timeout_seconds: float
    """gloo's own."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first thing that a rank says: it has joined the group. It then waits to be told that all have."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Or this, and then nothing more."""

    reason: str


def serve_rank(place: Place, channel: socket.socket) -> None:
    """All that a rank does, until the pool ends it or is gone."""
    try:
        (function, args), _ = messages.receive(channel)
        _join(place)
    except Exception as error:
        messages.send(channel, NotStarted(_text(error)))
        return
    messages.send(channel, Started())
    # Connecting to a rank that has run already, and died of it, would fail: an error of ours, and not of the function.
    if not channel.recv(1):
        return
    outcome, raised = _outcome(function, place.rank, args)
    messages.send_pickled(channel, _pickled(outcome))
    # The groups, and all works that value and error hold, stay until every rank has said what came of it: without
    # this rank's connections, others that wait for it would not hang but fail; and gloo spins over a message whose
    # receiver has been dropped.
    channel.recv(1)
    del raised  # and not before


def _join(place: Place) -> None:
    # A file without a name, and no TCPStore: each of its connections asks the name server who 127.0.0.1 is, on both
    # sides, and one answer that is lost costs five seconds.
    store = FileStore(f"/proc/self/fd/{place.store}", place.world_size)
    timeout = timedelta(seconds=place.timeout_seconds)
    dist.distributed_c10d.default_pg_timeout = timeout  # of the groups that the function makes
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)


def _outcome(
    function: Callable[..., object], rank: int, args: tuple[Any, ...]
) -> tuple[RankOutcome, BaseException | None]:
    """And what it raised, with all that its frames hold."""
    try:
        return RankOutcome(Ending.RETURNED, function(rank, *args)), None
    except (Exception, SystemExit) as error:
        text = _text(error)
        return RankOutcome(Ending.HUNG if _is_timeout(text) else Ending.RAISED, error=text), error


def _is_timeout(text: str) -> bool:
    """Whether it is gloo that gave up waiting."""
    return "timed out" in text.lower()


def _pickled(outcome: RankOutcome) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        return pickle.dumps(RankOutcome(Ending.RAISED, error=f"what it returned cannot be sent: {_text(error)}"))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def silence() -> None:
    """Send what this process prints nowhere, native code included: gloo has much to say about broken programs."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
