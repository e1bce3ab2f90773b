"""The simulated process group: every operation of torch.distributed, turned into calls of an execution.

Each method checks its arguments as gloo does, says what must agree across ranks (a `Signature`), which tensors move (a
`Payload`), and issues the call. torch.distributed's Python functions call these methods directly; C++ (the Reducer, functional
collectives) reaches them through torch's trampoline (PyProcessGroup.hpp), which looks them up by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp
from torch.autograd import Variable
from torch.distributed import ProcessGroup

from simulator.calls import ANY_SOURCE, Call, Shape, Signature
from simulator.process_group.origins import OriginTracker
from simulator.process_group.work import SimulatedWork
from simulator.runtime.call_sites import site_here
from simulator.runtime.execution import Execution
from simulator.runtime.rank_thread import Pending
from simulator.transport.payload import Payload

_DTYPE_NAMES: dict[torch.dtype, str] = {
    value: str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)
}


class SimulatedGroup(ProcessGroup):
    """One rank's handle of a process group."""

    def __init__(
        self,
        execution: Execution,
        origins: OriginTracker,
        *,
        label: str,
        members: tuple[int, ...],
        rank: int,
        store: Any,
    ) -> None:
        self._group_rank = members.index(rank)
        super().__init__(self._group_rank, len(members))  # torch's other constructor, with a store, allows no subclass
        self._store = store
        self._execution = execution
        self._origins = origins
        self._label = label
        self._members = members
        self._rank = rank
        self._sequence = 0
        self._messages = 0
        self._is_destroyed = False
        execution.slots.declare(label, members)

    # --- what torch asks of a group -----------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Always "simulated": for "gloo" or "nccl" DDP's logger (logger.cpp) would look for the C++ backend object.

        Programs ask `dist.get_backend()`, which answers the name they asked the group for.
        """
        return "simulated"

    def getRank(self) -> int:  # noqa: N802
        """This rank's number in the group."""
        return self._group_rank

    def getSize(self) -> int:  # noqa: N802
        """How many ranks the group has."""
        return len(self._members)

    def get_group_store(self) -> Any:
        """The store the group was made with."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    def shutdown(self) -> None:
        """Make the group unusable, as destroy_process_group does."""
        self._is_destroyed = True

    abort = shutdown

    def __repr__(self) -> str:
        return f'SimulatedGroup("{self._label}", rank {self._group_rank} of {len(self._members)})'

    # --- collectives --------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Reduce onto every rank, in place."""
        if isinstance(tensors, Tensor):  # DDP's join calls the group by torch's other signature
            tensors = [tensors]
        return self._reduce_in_place("all_reduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Reduce several tensors onto every rank, in place."""
        return self._reduce_in_place("all_reduce_coalesced", tensors, opts)

    def _reduce_in_place(self, operation: str, tensors: list[Tensor], opts: Any) -> SimulatedWork:
        reduction, factor = _reduction(opts)
        signature = Signature(operation, _shapes(tensors), _dtype(tensors), reduction)
        return self._issue(signature, Payload(tensors, tensors, factor), tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> SimulatedWork:
        """Reduce onto the root."""
        reduction, factor = _reduction(opts)
        root = self._members[opts.rootRank]
        signature = Signature("reduce", _shapes(tensors), _dtype(tensors), reduction, root)
        return self._issue(signature, Payload(tensors, tensors, factor), tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> SimulatedWork:
        """Copy the root's tensors to every rank."""
        root = self._members[opts.rootRank]
        signature = Signature("broadcast", _shapes(tensors), _dtype(tensors), root=root)
        return self._issue(signature, Payload(tensors, tensors), tensors)

    def allgather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Collect every rank's tensor on every rank."""
        outputs = output_lists[0]
        signature = Signature("all_gather", _shapes(inputs), _dtype(inputs))
        return self._issue(signature, Payload(inputs, outputs), outputs)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimulatedWork:
        """Collect every rank's tensor in one tensor on every rank."""
        signature = Signature("all_gather_into_tensor", _shapes([tensor]), _dtype([tensor]))
        return self._issue(signature, Payload([tensor], [output]), [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> SimulatedWork:
        """Several all_gather_single in one call."""
        signature = Signature("all_gather_into_tensor_coalesced", _shapes(inputs), _dtype(inputs))
        return self._issue(signature, Payload(inputs, outputs), outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> SimulatedWork:
        """Several all_gather in one call; `output_lists[r][i]` takes tensor i of rank r."""
        outputs = [tensor for outputs in output_lists for tensor in outputs]
        signature = Signature("all_gather_coalesced", _shapes(inputs), _dtype(inputs))
        return self._issue(signature, Payload(inputs, outputs), outputs)

    def gather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SimulatedWork:
        """Collect every rank's tensor on the root."""
        outputs = output_lists[0] if output_lists else []
        signature = Signature("gather", _shapes(inputs), _dtype(inputs), root=self._members[opts.rootRank])
        return self._issue(signature, Payload(inputs, outputs), outputs)

    def scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any) -> SimulatedWork:
        """Hand out the root's tensors, one to each rank."""
        inputs = input_lists[0] if input_lists else []
        signature = Signature("scatter", _shapes(outputs), _dtype(outputs), root=self._members[opts.rootRank])
        return self._issue(signature, Payload(inputs, outputs), outputs)

    def reduce_scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None) -> SimulatedWork:
        """Reduce a list of tensors, one result to each rank."""
        reduction, factor = _reduction(opts)
        inputs = input_lists[0]
        signature = Signature("reduce_scatter", _shapes(inputs), _dtype(inputs), reduction)
        return self._issue(signature, Payload(inputs, outputs, factor), outputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimulatedWork:
        """Reduce a tensor, one part of the result to each rank."""
        return self._reduce_scatter_tensors("reduce_scatter_tensor", [output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> SimulatedWork:
        """Several reduce_scatter_single in one call."""
        return self._reduce_scatter_tensors("reduce_scatter_tensor_coalesced", outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_tensors(
        self, operation: str, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> SimulatedWork:
        reduction, factor = _reduction(opts)
        signature = Signature(operation, _shapes(inputs), _dtype(inputs), reduction)
        return self._issue(signature, Payload(inputs, outputs, factor), outputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimulatedWork:
        """Tensor j of rank i becomes tensor i of rank j."""
        splits = (_numels(inputs), _numels(outputs))
        signature = Signature("all_to_all", _shapes(inputs), _dtype(inputs), splits=splits)
        return self._issue(signature, Payload(inputs, outputs), outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> SimulatedWork:
        """Rows of rank i go to rank j, as many as the splits say (equal parts if there are none)."""
        size = len(self._members)
        splits = (_splits(input_splits, tensor, size), _splits(output_splits, output, size))
        signature = Signature("all_to_all_single", _shapes([tensor]), _dtype([tensor]), splits=splits)
        return self._issue(signature, Payload([tensor], [output], splits=splits), [output])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> SimulatedWork:
        """Wait until every rank of the group is here."""
        return self._issue(Signature("barrier"), Payload((), ()), [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks which have not come when `timeout` (virtual) passes."""
        work = self._issue(Signature("monitored_barrier"), Payload((), ()), [])
        work.wait()

    # --- point-to-point -----------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> SimulatedWork:
        """Send to a rank of the group."""
        signature = Signature("send", _shapes(tensors), _dtype(tensors))
        return self._issue(signature, Payload(tensors, ()), tensors, peer=self._members[dst], tag=tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> SimulatedWork:
        """Receive from a rank of the group."""
        signature = Signature("recv", _shapes(tensors), _dtype(tensors))
        return self._issue(signature, Payload((), tensors), tensors, peer=self._members[src], tag=tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> SimulatedWork:
        """Receive from whichever rank of the group sends."""
        signature = Signature("recv", _shapes(tensors), _dtype(tensors))
        return self._issue(signature, Payload((), tensors), tensors, peer=ANY_SOURCE, tag=tag)

    # --- calls that torch does not know -------------------------------------------------------------------------------

    def rendezvous(self) -> None:
        """Wait until every member has created the group, as a real backend connects all of them."""
        self._issue(Signature("new_group", members=self._members), Payload((), ()), []).wait()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _issue(
        self, signature: Signature, payload: Payload, result: list[Tensor], *, peer: int | None = None, tag: int = 0
    ) -> SimulatedWork:
        execution = self._execution
        execution.begin_call()
        if self._is_destroyed:
            raise RuntimeError(
                f'{signature.operation} on group "{self._label}", which was destroyed: make the call before '
                "destroy_process_group, or create the group again"
            )
        if peer is None:
            sequence, self._sequence = self._sequence, self._sequence + 1
        else:
            sequence, self._messages = self._messages, self._messages + 1
        call = Call(
            self._rank, self._label, sequence, signature, site_here(), self._origins.current(signature), peer, tag
        )
        pending = Pending(call, execution.me, payload)
        work = SimulatedWork(execution, pending, result)
        execution.issue(call, pending)
        if torch._C._current_graph_task_id() != -1:
            if execution.me.is_reducing_at_once:
                work.wait()  # see Note [Static graphs]
            else:
                _wait_before_backward_ends(work)
        return work


def _wait_before_backward_ends(work: SimulatedWork) -> None:
    """Note [Waiting inside backward].

    The Reducer waits for its buckets in C++ (Reducer::finalize_backward, torch/csrc/distributed/c10d/reducer.cpp), where no
    hand-over is possible. It does so in an engine callback queued after its last call. Callbacks run in the order they were
    queued, so one queued here, when the call is issued, waits cooperatively before that, and the Reducer finds all done.
    """
    Variable._execution_engine.queue_callback(work.wait)  # type: ignore[attr-defined]


def _shapes(tensors: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple([tuple(tensor.shape) for tensor in tensors])


def _dtype(tensors: Sequence[Tensor]) -> str | None:
    return _DTYPE_NAMES[tensors[0].dtype] if tensors else None


def _numels(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple([tensor.numel() for tensor in tensors])


def _splits(splits: Sequence[int], tensor: Tensor, size: int) -> tuple[int, ...]:
    return tuple(splits) or (tensor.shape[0] // size,) * size


def _reduction(opts: Any) -> tuple[str, Any]:
    """The name of the reduction, and the factor of a PREMUL_SUM."""
    if opts is None:
        return "SUM", None
    operation = opts.reduceOp
    if not isinstance(operation, ReduceOp):
        return operation.name, None
    name: str = operation.op.name
    if name != "PREMUL_SUM":
        return name, None
    factor = operation.factor
    return name, factor() if callable(factor) else factor
