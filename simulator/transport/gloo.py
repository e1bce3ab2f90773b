"""Transport `gloo`: what calls move goes through real process groups, one `ProcessGroupGloo` for each rank.

Calls have met and agree when they come here, so gloo sees neither mismatch nor deadlock; the rank whose call came last
hands the work to all groups and waits until it is done. gloo finishes its works on threads of its own, in its own order
of additions.

All groups of a run share one gloo device, so its one event loop serves all ranks: beside a device for each rank, as
processes have, a call of four ranks takes half as long. Connections are made when a group first moves data, and taken
down by a thread for each rank, since each waits for its peers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch._C._distributed_c10d as _c10d
import torch.distributed as dist

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import OPERATIONS, Kind
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.transport.gloo_calls import ask
from ddpsim.simulator.transport.modes import without_modes
from ddpsim.simulator.transport.payload import Payload
from ddpsim.simulator.transport.staging import Stage

_TIMEOUT = timedelta(seconds=30)
"""No call waits for a rank, so this only ends what gloo itself could not."""

_SPARE_FILES = 32
"""Files that a process opens on its way, roughly."""

_REMEDY = "raise it (`ulimit -n`), take fewer ranks or groups, or transport='memory'"


class Gloo:
    """The process groups of one run."""

    def __init__(self, world_size: int) -> None:
        check_available()
        problem = _lack_of_files(world_size)
        if problem is not None:
            raise UsageError(f"{problem}: {_REMEDY}")
        self._device: Any = _gloo().create_device(hostname="127.0.0.1")
        self._groups: dict[str, list[Any]] = {}
        """By the label of the group, in group-rank order."""

    def move(self, signature: Signature, pendings: Sequence[Pending], members: Sequence[int]) -> Exception | None:
        """Let gloo do it; return what gloo says if it cannot."""
        if OPERATIONS[signature.operation].on_gloo is None:
            return None
        label = pendings[0].call.group
        try:
            groups = self._groups_of(label, len(members))
        except Exception as error:
            return error.with_traceback(None)
        with without_modes(), torch._C._AutoDispatchBelowADInplaceOrView():
            failure = _error_of(groups, signature, pendings, members)
        if failure is None:
            return None
        _take_down(self._groups.pop(label))  # some ranks may still wait inside; the next call connects again
        return failure.with_traceback(None)  # its frames hold the groups

    def close(self) -> None:
        """Take down all connections."""
        while self._groups:
            _take_down(self._groups.popitem()[1])
        self._device = None

    def _groups_of(self, label: str, size: int) -> list[Any]:
        if label not in self._groups:
            problem = _lack_of_files(size)
            if problem is not None:  # gloo would end the process
                raise RuntimeError(f'group "{label}": {problem}: {_REMEDY}')
            self._groups[label] = _connected(self._device, size)
        return self._groups[label]


def check_available() -> None:
    """Raise UsageError if this torch has no gloo."""
    if not dist.is_gloo_available():
        raise UsageError(
            "transport is 'gloo', but this torch is built without gloo: use transport='memory', or another torch"
        )


def _lack_of_files(size: int) -> str | None:
    """What to say if this process may not open the sockets that connect so many ranks; None if it may."""
    try:
        import resource
    except ImportError:  # no such limits there
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets, opened = size * (size - 1), len(os.listdir("/dev/fd"))
    if limit == resource.RLIM_INFINITY or sockets + opened + _SPARE_FILES <= limit:
        return None
    return (
        f"gloo needs {sockets} sockets to connect {size} ranks with each other, beside {opened} files that are open, "
        f"expected at most {limit} in all, this process's limit"
    )


def _gloo() -> Any:
    return _c10d.ProcessGroupGloo  # looked up late: a torch without gloo has none


def _connected(device: Any, size: int) -> list[Any]:
    """The backends of `size` ranks, connected with each other: each waits for the others while it is made."""
    store = _c10d.Store.__new__(
        _c10d.HashStore
    )  # torch's own: to a rank, on whose thread this is, the class gives ours
    store.__init__()  # type: ignore[misc]
    groups: list[Any] = [None] * size

    def connect(rank: int) -> None:
        options = _gloo()._Options()
        options._devices, options._timeout, options._threads = [device], _TIMEOUT, 1
        groups[rank] = _gloo()(store, rank, size, options)

    _side_by_side(partial(connect, rank) for rank in range(size))
    return groups


def _take_down(groups: list[Any]) -> None:
    def drop(rank: int) -> None:
        groups[rank] = None

    _side_by_side(partial(drop, rank) for rank in range(len(groups)))


def _side_by_side(tasks: Iterable[Callable[[], None]]) -> None:
    """Run all of them at once; raise what the first of them raised."""
    errors: list[Exception] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,), name="ddpsim gloo", daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _error_of(
    groups: Sequence[Any], signature: Signature, pendings: Sequence[Pending], members: Sequence[int]
) -> Exception | None:
    """Make a call on all its ranks; return what went wrong."""
    try:
        stages = [Stage(pending.payload) for pending in pendings]
        payloads = [stage.payload for stage in stages]
        if OPERATIONS[signature.operation].kind is Kind.MESSAGE:
            works = _message(groups, pendings, payloads, members)
        else:
            root = None if signature.root is None else members.index(signature.root)
            each = zip(groups, payloads, strict=True)
            works = [ask(signature.operation, group, payload, signature.reduction, root) for group, payload in each]
        error = _first_error(works)
        if error is None:
            for stage in stages:
                stage.finish()
    except Exception as raised:
        return raised
    return error


def _message(
    groups: Sequence[Any], pendings: Sequence[Pending], payloads: Sequence[Payload], members: Sequence[int]
) -> list[Any]:
    """The two sides of a message. A receive from any source has found its sender, and asks for it."""
    (send, receive), (sent, received) = pendings, payloads
    sender, receiver = members.index(send.call.rank), members.index(receive.call.rank)
    return [
        groups[sender].send(list(sent.inputs), receiver, send.call.tag),
        groups[receiver].recv(list(received.outputs), sender, receive.call.tag),
    ]


def _first_error(works: Sequence[Any]) -> Exception | None:
    """Wait for all works; return what the first that failed raised."""
    errors = []
    for work in works:
        try:
            work.wait()
        except Exception as error:
            errors.append(error)
    return errors[0] if errors else None
