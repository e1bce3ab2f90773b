"""Transport `gloo`: moves the data of calls through real process groups, one `ProcessGroupGloo` for each rank.

The kernel has matched a call and checked that its ranks agree, so gloo sees neither mismatch nor deadlock. The rank
whose call came last starts the work on all groups and waits for it. gloo adds in its own order, on its own threads.

All groups of a run share one gloo device: with one event loop, a call of four ranks takes half as long as with a device
for each rank. Groups connect when they first move data. Disconnecting takes a thread for each rank, because each rank
waits for its peers.

torch's gloo accepts GPU tensors for some collectives and for no message (the table in torch's documentation of
torch.distributed, "Backends"). So GPU tensors are copied to host memory before a call and back after it (`Stage`).
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
from torch import Tensor

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import OPERATIONS, Kind
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.transport.gloo_calls import ask
from ddpsim.simulator.transport.modes import without_modes
from ddpsim.simulator.transport.payload import Payload

_TIMEOUT = timedelta(seconds=30)
"""No call waits for a rank, so only a call that gloo itself cannot finish reaches this timeout."""

_SPARE_FILES = 32
"""An estimate of the files that a process opens during a run, besides gloo's."""

_REMEDY = "raise it (`ulimit -n`), take fewer ranks or groups, or transport='memory'"


class Gloo:
    """The gloo process groups of one run."""

    def __init__(self, world_size: int) -> None:
        check_available()
        problem = _lack_of_files(world_size)
        if problem is not None:
            raise UsageError(f"{problem}: {_REMEDY}")
        self._device: Any = _gloo().create_device(hostname="127.0.0.1")
        self._groups: dict[str, list[Any]] = {}
        """The process groups of the ranks in group-rank order, by the label of the simulated group."""

    def move(self, signature: Signature, pendings: Sequence[Pending], members: Sequence[int]) -> Exception | None:
        """Move the data of a call that is complete; return gloo's error if it fails.

        `members` are the global ranks of the group, and `pendings` their calls in the same order. For a message they
        are the sender's and the receiver's.
        """
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
        _take_down(self._groups.pop(label))  # some ranks may still wait in them; the next call connects again
        return failure.with_traceback(None)  # its frames hold the groups

    def close(self) -> None:
        """Take down all connections."""
        while self._groups:
            _take_down(self._groups.popitem()[1])
        self._device = None

    def _groups_of(self, label: str, size: int) -> list[Any]:
        if label not in self._groups:
            problem = _lack_of_files(size)
            if problem is not None:  # gloo itself would abort the process
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
    """Return an error text if the limit on open files is too low to connect `size` ranks, else None."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets, opened = size * (size - 1), len(os.listdir("/dev/fd"))
    if limit == resource.RLIM_INFINITY or sockets + opened + _SPARE_FILES <= limit:
        return None
    return (
        f"gloo needs {sockets} sockets to connect {size} ranks, and {opened} files are open already, "
        f"expected at most {limit} in all, this process's limit"
    )


def _gloo() -> Any:
    return _c10d.ProcessGroupGloo  # read only here: a torch without gloo lacks the attribute


def _connected(device: Any, size: int) -> list[Any]:
    """Return the connected backends of `size` ranks; each waits for the others while it is constructed."""
    # This runs on the thread of a rank, where calling the class returns a simulated store: construct torch's own.
    store = _c10d.Store.__new__(_c10d.HashStore)
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
    """Run the tasks in parallel; raise the first error."""
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
    """Make a call on the groups of all its ranks, and wait for it; return the error if it fails."""
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
    """Start both sides of a message. A receive from any source has been matched, so it names its sender."""
    (send, receive), (sent, received) = pendings, payloads
    sender, receiver = members.index(send.call.rank), members.index(receive.call.rank)
    return [
        groups[sender].send(list(sent.inputs), receiver, send.call.tag),
        groups[receiver].recv(list(received.outputs), sender, receive.call.tag),
    ]


def _first_error(works: Sequence[Any]) -> Exception | None:
    """Wait for all works; return the first error."""
    errors = []
    for work in works:
        try:
            work.wait()
        except Exception as error:
            errors.append(error)
    return errors[0] if errors else None


class Stage:
    """One rank's payload in host memory."""

    def __init__(self, payload: Payload) -> None:
        self._original = payload
        self._copies: dict[int, Tensor] = {}
        """Copies by id() of the original tensor, because an input may also be an output."""
        self.payload = payload
        if any(needs_staging(tensor) for tensor in (*payload.inputs, *payload.outputs)):
            gathered: list[Tensor] | None = None if payload.gathered is None else []
            inputs, outputs = self._on_host(payload.inputs), self._on_host(payload.outputs)
            self.payload = payload._replace(inputs=inputs, outputs=outputs, gathered=gathered)

    def finish(self) -> None:
        """Copy the results back to the original tensors, on the caller's stream."""
        original, staged = self._original, self.payload
        if staged is original:
            return
        for tensor, copy in zip(original.outputs, staged.outputs, strict=True):
            tensor.copy_(copy)
        if original.gathered is not None and staged.gathered is not None:
            original.gathered.extend(each.to(original.inputs[0].device) for each in staged.gathered)

    def _on_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            if id(tensor) not in self._copies:
                self._copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return [self._copies[id(tensor)] for tensor in tensors]


def needs_staging(tensor: Tensor) -> bool:
    """Return whether a tensor is outside host memory."""
    return tensor.device.type != "cpu"
