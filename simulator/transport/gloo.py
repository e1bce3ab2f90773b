"""Transport `gloo`: moves the data of calls through real process groups, one `ProcessGroupGloo` for each rank.

The kernel has matched a call and checked that its ranks agree, so gloo sees neither mismatch nor deadlock. The rank
whose call came last starts the work on all groups and waits for it. gloo adds in its own order, on its own threads.

All groups of a run share one gloo device: with one event loop, a call of four ranks takes half as long as with a device
for each rank. Groups connect when they first move data. Disconnecting takes a thread for each rank, because each rank
waits for its peers.

torch's gloo accepts GPU tensors for some collectives and for no message (the table in torch's documentation of
torch.distributed, "Backends"). So GPU tensors are copied to host memory before a call and back after it (`HostCopy`).
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch._C._distributed_c10d as _c10d
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from ddpsim.simulator.calls import Signature, Site
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import OPERATIONS, Operation, OperationKind
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.memory import note_wrong_values, same_gpu_error
from ddpsim.simulator.transport.payload import Payload

_TIMEOUT = timedelta(seconds=30)
"""No call waits for a rank, so only a call that gloo itself cannot finish reaches this timeout."""

_SPARE_FILES = 32
"""An estimate of the files that a process opens during a run, besides gloo's."""

_REMEDY = "raise it (`ulimit -n`), take fewer ranks or groups, or transport='memory'"


class GlooTransport:
    """The gloo process groups of one run."""

    def __init__(self, world_size: int) -> None:
        if not dist.is_gloo_available():
            raise UsageError(
                "transport is 'gloo', but this torch is built without gloo: use transport='memory', or another torch"
            )
        problem = _file_limit_problem(world_size)
        if problem is not None:
            raise UsageError(f"{problem}: {_REMEDY}")
        self._device: Any = _UNTYPED.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        self._groups: dict[str, list[Any]] = {}
        """The process groups of the ranks in group-rank order, by the label of the simulated group."""
        self.notes: dict[Site, str] = {}

    def move_data(
        self, signature: Signature, pendings: Sequence[PendingCall], members: Sequence[int]
    ) -> Exception | None:
        """Move the data of a call that is complete; return gloo's error if it fails.

        `members` are the global ranks of the group, and `pendings` their calls in the same order. For a message they
        are the sender's and the receiver's.
        """
        if OPERATIONS[signature.operation].kind is OperationKind.CREATION:
            return None  # a group is connected when it first moves data
        if (refusal := same_gpu_error(pendings)) is not None:
            return refusal
        note_wrong_values(self.notes, signature, pendings)
        label = pendings[0].call.group
        try:
            groups = self._connected_groups(label, len(members))
        except Exception as error:
            return error.with_traceback(None)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            failure = _make_call(groups, signature, pendings, members)
        if failure is None:
            return None
        _disconnect_groups(self._groups.pop(label))  # some ranks may still wait in them; the next call connects again
        return failure.with_traceback(None)  # its frames hold the groups

    def close(self) -> None:
        """Take down all connections."""
        while self._groups:
            _disconnect_groups(self._groups.popitem()[1])
        self._device = None

    def _connected_groups(self, label: str, size: int) -> list[Any]:
        if label not in self._groups:
            problem = _file_limit_problem(size)
            if problem is not None:  # gloo itself would abort the process
                raise RuntimeError(f'group "{label}": {problem}: {_REMEDY}')
            self._groups[label] = _connect_groups(self._device, size)
        return self._groups[label]


def _file_limit_problem(size: int) -> str | None:
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


def _connect_groups(device: Any, size: int) -> list[Any]:
    """Return the connected backends of `size` ranks; each waits for the others while it is constructed."""
    # This runs on the thread of a rank, where calling the class returns a simulated store: construct torch's own.
    store = _c10d.Store.__new__(_c10d.HashStore)
    store.__init__()  # type: ignore[misc]
    groups: list[Any] = [None] * size

    def connect(rank: int) -> None:
        options = _UNTYPED.ProcessGroupGloo._Options()
        options._devices, options._timeout, options._threads = [device], _TIMEOUT, 1
        groups[rank] = _UNTYPED.ProcessGroupGloo(store, rank, size, options)

    _run_in_parallel(partial(connect, rank) for rank in range(size))
    return groups


def _disconnect_groups(groups: list[Any]) -> None:
    """Drop the backends of a group in parallel, because each waits for its peers."""
    _run_in_parallel(partial(groups.__setitem__, rank, None) for rank in range(len(groups)))


def _run_in_parallel(tasks: Iterable[Callable[[], None]]) -> None:
    """Run the functions in parallel; raise the first error."""
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


def _make_call(
    groups: Sequence[Any], signature: Signature, pendings: Sequence[PendingCall], members: Sequence[int]
) -> Exception | None:
    """Make a call on the groups of all its ranks, and wait for it; return the error if it fails."""
    try:
        stages = [HostCopy(pending.payload) for pending in pendings]
        payloads = [stage.payload for stage in stages]
        if OPERATIONS[signature.operation].kind is OperationKind.MESSAGE:
            works = _start_message(groups, pendings, payloads, members)
        else:
            root = None if signature.root is None else members.index(signature.root)
            each = zip(groups, payloads, strict=True)
            works = [
                start_gloo_call(signature.operation, group, payload, signature.reduction, root)
                for group, payload in each
            ]
        error = _wait_for_works(works)
        if error is None:
            for stage in stages:
                stage.copy_back()
    except Exception as raised:
        return raised
    return error


def _start_message(
    groups: Sequence[Any], pendings: Sequence[PendingCall], payloads: Sequence[Payload], members: Sequence[int]
) -> list[Any]:
    """Start both sides of a message. A receive from any source has been matched, so it names its sender."""
    (send, receive), (sent, received) = pendings, payloads
    sender, receiver = members.index(send.call.rank), members.index(receive.call.rank)
    return [
        groups[sender].send(list(sent.inputs), receiver, send.call.tag),
        groups[receiver].recv(list(received.outputs), sender, receive.call.tag),
    ]


def _wait_for_works(works: Sequence[Any]) -> Exception | None:
    errors = []
    for work in works:
        try:
            work.wait()
        except Exception as error:
            errors.append(error)
    return errors[0] if errors else None


class HostCopy:
    """One rank's payload (the tensors of a call), copied to host memory."""

    def __init__(self, payload: Payload) -> None:
        self._original = payload
        self._copies: dict[int, Tensor] = {}
        """The copies by id() of the original tensor, because one tensor may be both input and output."""
        self.payload = payload
        if any(needs_host_copy(tensor) for tensor in (*payload.inputs, *payload.outputs)):
            gathered: list[Tensor] | None = None if payload.gathered is None else []
            inputs, outputs = self._copy_to_host(payload.inputs), self._copy_to_host(payload.outputs)
            self.payload = payload._replace(inputs=inputs, outputs=outputs, gathered=gathered)

    def copy_back(self) -> None:
        """Copy the results back to the original tensors, on the caller's stream."""
        original, staged = self._original, self.payload
        if staged is original:
            return
        for tensor, copy in zip(original.outputs, staged.outputs, strict=True):
            tensor.copy_(copy)
        if original.gathered is not None and staged.gathered is not None:
            original.gathered.extend(each.to(original.inputs[0].device) for each in staged.gathered)

    def _copy_to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            if id(tensor) not in self._copies:
                self._copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return [self._copies[id(tensor)] for tensor in tensors]


def needs_host_copy(tensor: Tensor) -> bool:
    """Return whether a tensor is outside host memory."""
    return tensor.device.type != "cpu"


_UNTYPED: Any = _c10d
"""The module without types: torch's stubs lack some names, and torch without gloo lacks `ProcessGroupGloo`."""


def start_gloo_call(operation: str, backend: Any, payload: Payload, reduction: str | None, root: int | None) -> Any:
    """Make a rank's call on its real backend, and return the work. `root` is a group rank.

    The call does not go through a process group: torch's operators there may be running a call of the simulation.
    """
    if payload.gathered is not None:
        return _gather_into_one(backend, payload.inputs[0], payload.gathered)
    method, make_tensors, kind, is_one_by_one = METHODS[operation]
    tensors, call = make_tensors(payload), getattr(backend, method)
    options = [_make_options(OPERATIONS[operation], kind, reduction, root)] if kind else []
    if is_one_by_one:
        return _JointWork([call(*pair, *options) for pair in zip(*tensors, strict=True)])
    return call(*tensors, *options)


class _JointWork(NamedTuple):
    """Several works of gloo that are waited for as one."""

    works: Sequence[Any]

    def wait(self) -> None:
        """Wait for all works; raise the first error."""
        for work in self.works:
            work.wait()


def _make_options(row: Operation, kind: str, reduction: str | None, root: int | None) -> Any:
    options = getattr(_UNTYPED, kind)()
    if row.reduces:
        options.reduceOp = getattr(ReduceOp, str(reduction))
    if row.has_root:
        options.rootRank = root
    if hasattr(options, "device"):  # of a barrier, which has no tensors that name a device
        options.device = torch.device("cpu")
    return options


def _gather_into_one(backend: Any, tensor: Tensor, gathered: list[Tensor]) -> Any:
    """Start an all_gather whose result is one tensor for all ranks; append this tensor to `gathered`."""
    together = tensor.new_empty(backend.size() * tensor.shape[0], *tensor.shape[1:])
    gathered.append(together)
    return backend._allgather_base(together, tensor)


def _tensors(payload: Payload) -> tuple[Any, ...]:
    return (list(payload.inputs),)


def _tensors_from_tensors(payload: Payload) -> tuple[Any, ...]:
    return list(payload.outputs), list(payload.inputs)


def _list_from_tensors(payload: Payload) -> tuple[Any, ...]:
    outputs, count = payload.outputs, len(payload.outputs) // len(payload.inputs)
    lists = [list(outputs[start : start + count]) for start in range(0, len(outputs), count)] if count else []
    return lists, list(payload.inputs)


def _tensors_from_list(payload: Payload) -> tuple[Any, ...]:
    return list(payload.outputs), _wrap_in_list(payload.inputs)


def _lists_from_tensors(payload: Payload) -> tuple[Any, ...]:
    count = len(payload.inputs)
    starts = range(0, len(payload.outputs), count)
    return [list(payload.outputs[start : start + count]) for start in starts], list(payload.inputs)


def _split_tensors(payload: Payload) -> tuple[Any, ...]:
    assert payload.splits is not None
    sent, received = (list(part) for part in payload.splits)
    return payload.outputs[0], payload.inputs[0], received, sent


def _wrap_in_list(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    return [list(tensors)] if tensors else []


class GlooMethod(NamedTuple):
    """The method of torch's gloo process group that an operation calls."""

    method: str
    make_tensors: Callable[[Payload], tuple[Any, ...]]
    """The function that returns the tensor arguments of the method. Options follow them."""
    options: str = ""
    """The name of the class of the method's options; "" without options. Its fields are those of the operation."""
    is_one_by_one: bool = False
    """True if the method is called for each tensor, as a gloo backend lacks the joint method in Python."""


_ALL_GATHER_BASE = GlooMethod("_allgather_base", _tensors_from_tensors, is_one_by_one=True)
_REDUCE_SCATTER_BASE = GlooMethod("_reduce_scatter_base", _tensors_from_tensors, "ReduceScatterOptions", True)

METHODS = {
    "all_reduce": GlooMethod("allreduce", _tensors, "AllreduceOptions"),
    "all_reduce_coalesced": GlooMethod("allreduce_coalesced", _tensors, "AllreduceCoalescedOptions"),
    "broadcast": GlooMethod("broadcast", _tensors, "BroadcastOptions"),
    "reduce": GlooMethod("reduce", _tensors, "ReduceOptions"),
    "all_gather": GlooMethod("allgather", _list_from_tensors),
    "all_gather_coalesced": GlooMethod("allgather_coalesced", _lists_from_tensors),
    "all_gather_into_tensor": _ALL_GATHER_BASE,
    "all_gather_into_tensor_coalesced": _ALL_GATHER_BASE,
    "gather": GlooMethod("gather", _list_from_tensors, "GatherOptions"),
    "scatter": GlooMethod("scatter", _tensors_from_list, "ScatterOptions"),
    "reduce_scatter": GlooMethod("reduce_scatter", _tensors_from_list, "ReduceScatterOptions"),
    "reduce_scatter_tensor": _REDUCE_SCATTER_BASE,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTER_BASE,
    "all_to_all": GlooMethod("alltoall", _tensors_from_tensors),
    "all_to_all_single": GlooMethod("alltoall_base", _split_tensors),
    "barrier": GlooMethod("barrier", lambda payload: (), "BarrierOptions"),
    "monitored_barrier": GlooMethod("barrier", lambda payload: (), "BarrierOptions"),
}
"""The methods by operation, except those of messages."""
