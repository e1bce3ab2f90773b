"""Issues communication calls to the kernel: the part that all operations of a group have in common."""

import functools
import os
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import DebugLevel, get_debug_level
from torch.autograd import Variable

from ddpsim.simulator.accesses import Access, Accesses, AccessMode
from ddpsim.simulator.attribution.origins import OriginTracker
from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, USER_ORIGIN, Call, Signature
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.events import NOT_CHECKED, RAW_MEMORY, EventKind
from ddpsim.simulator.hazards.hazard_watch import is_synchronous_call
from ddpsim.simulator.hazards.poison import poison_call
from ddpsim.simulator.kernel.requests import CloseBatch, DeclareGroup, DestroyGroup, OpenBatch, WriteNote
from ddpsim.simulator.matching.agreement import OP_TYPES
from ddpsim.simulator.matching.slots import call_object, channel_object, group_object, order_object
from ddpsim.simulator.process_group.through_torch import TorchDispatch
from ddpsim.simulator.process_group.work import BufferedSend, FailedWork, SimulatedWork
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.modes import suspend_modes
from ddpsim.simulator.transport.payload import Payload, as_gloo_takes, elements_spanned, memory_order

_ON_RAW_MEMORY = ("all_reduce", "all_to_all_single", "broadcast", "reduce", "scatter")
"""The operations of which gloo takes a tensor for as many elements of memory as it has, from where it begins."""

_WITHOUT_RESULT = ("send", "recv", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
"""The operations of which gloo's handles have neither a result nor a future."""


class CallIssuer:
    """Issues one rank's calls on one group."""

    def __init__(
        self,
        host: Host,
        origins: OriginTracker,
        *,
        label: str,
        members: tuple[int, ...],
        rank: int,
        through_torch: TorchDispatch,
        has_nccl: bool = False,
        poisons: bool = False,
        is_beside_nccl: bool = False,
        semantics: BackendSemantics = GLOO,
    ) -> None:
        self.host = host
        self.label = label
        self.members = members
        self.rank = rank
        self.is_destroyed = False
        self.has_nccl = has_nccl
        """True if the program asked for NCCL, for all tensors or for those of one kind of device."""
        self.is_nccl = has_nccl or semantics.batch_is_unit
        """True if the group behaves as one of NCCL."""
        self._semantics = semantics
        self._ignores_tags = semantics.ignores_tags and not is_beside_nccl
        self._origins = origins
        self._poisons = poisons
        """True if tensors of unfinished calls get values that show early reads; see Note [Poison] in poison.py."""
        self._through_torch = through_torch
        self.timeout = timedelta(0)
        self.collectives = 0
        """The number of this rank's calls on the group that are no messages."""
        self.issued = 0
        """The number of calls on this group, as a backend counts them. Calls that create groups are not counted."""
        self._messages = 0
        self._coalesced: list[SimulatedWork | FailedWork] | None = None
        level = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "")
        self._is_compared = get_debug_level() == DebugLevel.DETAIL or level.upper() == "DETAIL"
        """True if torch compares the ranks' calls on the group, and a call begins when all ranks have made it."""
        host.send_request(DeclareGroup(label, members, is_beside_nccl, self._is_compared))

    def mark_destroyed(self) -> None:
        """Reject all later calls on the group, and record the program line that destroyed it."""
        self.is_destroyed = True
        self._report_use(AccessMode.WRITE)
        self.host.send_request(DestroyGroup(self.label, current_user_site()))

    def issue_call(
        self,
        signature: Signature,
        payload: Payload,
        result: Sequence[Any],
        *,
        peer: int | None = None,
        tag: int = 0,
        refusal: str | None = None,
    ) -> Any:
        """Issue a call and return its work. `refusal`: the backend's error, if any, which a wait raises."""
        host = self.host
        ignored_tag = tag if tag and self._ignores_tag(payload) else 0
        tag -= ignored_tag
        me = host.begin_call(self._accesses_of_call(signature, peer, tag) if host.is_observed else ())
        if me.rank != self.rank:
            self._reject_other_rank(me.rank, signature.operation)
        if host.is_observed:
            self._report_use(AccessMode.READ)
        if self.is_destroyed:
            raise RuntimeError(
                f'{signature.operation} on group "{self.label}", which was destroyed: make the call before '
                "destroy_process_group, or create the group again"
            )
        if peer is None:
            sequence, self.collectives = self.collectives, self.collectives + 1
        else:
            sequence, self._messages = self._messages, self._messages + 1
        if refusal is not None:
            return self._collect_work(FailedWork(RuntimeError(refusal)))
        self.issued += signature.members is None and signature.operation != "split_group"
        through_torch = self._through_torch
        start = through_torch.calling_frame() if through_torch.under_way else None
        origin, site, caller, names = self._origins.locate_call(signature, payload.inputs, start)
        if peer is not None:
            origin = self._origins.messages.attribute_message(origin, payload)
        coordinates = self._origins.coordinates
        call = Call(self.rank, self.label, sequence, signature, site, origin, peer, tag, caller, me.name, coordinates)
        if ignored_tag:
            call = call._replace(ignored_tag=ignored_tag)
        is_buffered = self._semantics.sends_eagerly and signature.operation == "send"
        if not self.is_nccl and signature.operation in _ON_RAW_MEMORY:
            payload = self._on_raw_memory(call, payload)
        if self.has_nccl:
            tensors = (*payload.inputs, *payload.outputs)
            payload = payload._replace(gpu=payload.gpu or gpu_of(tensors, host.world_size))
        rank = me.of
        rank.calls_issued += 1
        pending = PendingCall(
            call, rank.calls_issued, rank, payload.with_copied_inputs() if is_buffered else payload, self.members
        )
        for name in names:
            host.send_request(Noticed(NoticedKind.NAMED, (call,), name))
        if (origin is USER_ORIGIN or origin.is_recomputed) and torch.is_grad_enabled():
            self._note_backwards_through(call, payload)
        held = poison_call(call, payload, host.hazards.mark_number, is_synchronous_call) if self._poisons else None
        if held is not None:
            pending.poisoned, pending.payload = held, held.moved
        work = (BufferedSend if is_buffered else SimulatedWork)(host, pending, result, self.timeout)
        is_on_gloo = not self.is_nccl and self._semantics == GLOO and self._coalesced is None
        work.lacks_result = is_on_gloo and signature.operation in _WITHOUT_RESULT
        host.issue_call(pending)
        if torch._C._current_graph_task_id() != -1:
            _wait_before_backward_ends(work, at_once=me.is_reducing_at_once)
        if self._is_compared and self._coalesced is None and signature.operation in OP_TYPES:
            with suspend_modes():
                host.wait_for_calls((pending,))
            if pending.error is not None:
                work.wait()  # raises it
        return self._collect_work(work)

    def _note_backwards_through(self, call: Call, payload: Payload) -> None:
        """Let a backward through a tensor that a call changes write a note, where torch warns of `c10d::allreduce_`."""
        for tensor in payload.outputs:
            if tensor.grad_fn is not None:
                what = f"autograd does not see {call.operation} ({call.location}), so a backward through its tensor"
                text = f"{NOT_CHECKED}whether gradients are as meant: {what} gave those of the rank's own value"
                tensor.register_hook(functools.partial(self._write_note, text))

    def _write_note(self, text: str, _: Tensor) -> None:
        self.host.send_request(WriteNote(EventKind.NOTE, text))

    def _on_raw_memory(self, call: Call, payload: Payload) -> Payload:
        """Return the payload with the memory that gloo moves, and note that a tensor has others there, or an order."""
        passed = (*payload.inputs, *payload.outputs)
        if all(tensor.is_contiguous() for tensor in passed if tensor.layout is torch.strided):
            return payload
        spans_others = any(elements_spanned(tensor) > tensor.numel() for tensor in passed)
        if spans_others or len({tensor.stride() for tensor in passed if tensor.shape == passed[0].shape}) > 1:
            moved = "the elements that follow its first in memory, not all its own"
            moved = (
                moved if spans_others else "elements in memory order, which differs between its inputs and its outputs"
            )
            what = f"{call.operation} ({call.location}) has a tensor that is not contiguous"
            text = f"{RAW_MEMORY}{what}, and gloo moves {moved}"
            self.host.send_request(WriteNote(EventKind.NOTE, f"{text}: pass tensor.contiguous(), and copy it back"))
        payload = payload._replace(order=max(map(memory_order, passed)))
        inputs = [as_gloo_takes(tensor) for tensor in payload.inputs]
        is_same = payload.outputs is payload.inputs
        return payload._replace(inputs=inputs, outputs=inputs if is_same else list(map(as_gloo_takes, payload.outputs)))

    def _reject_other_rank(self, rank: int, operation: str) -> NoReturn:
        """End the run: a rank used another rank's group, and the call would be taken for one of that other rank."""
        error = UsageError(
            f"rank {rank} calls {operation} on the process group of rank {self.rank}, expected its own: ranks are "
            "threads of one process, so keep no group in a module, cache or default argument, or run with "
            "isolation='process'"
        )
        self.host.abort_run(error)
        raise error

    def _ignores_tag(self, payload: Payload) -> bool:
        """Return whether no tag is seen: by the backend's rules, or as NCCL moves the tensors."""
        return self._ignores_tags or (
            self.has_nccl and any(each.is_cuda for each in (*payload.inputs, *payload.outputs))
        )

    def _accesses_of_call(self, signature: Signature, peer: int | None, tag: int) -> Accesses:
        """Return what a call reads and writes that other ranks may observe, for the exploration of schedules."""
        sequence = self.collectives if peer is None else self._messages
        call = Call(self.rank, self.label, sequence, signature, NOWHERE, peer=peer, tag=tag)
        parts = [Access(call_object(call), AccessMode.CONTRIBUTE)]
        if self.host.running_thread.of.has_started_threads:
            parts.append(Access(order_object(call), AccessMode.WRITE))
        if signature.operation == "send":
            parts.append(Access(channel_object(call), AccessMode.SEND))
        elif peer == ANY_SOURCE:
            parts.append(Access(channel_object(call), AccessMode.RECEIVE))
        return tuple(parts)

    def start_coalescing(self) -> None:
        """Start to collect the works of the next calls."""
        if self._coalesced is not None:
            raise RuntimeError("coalescing has been started already: end it before the next start")
        self._coalesced = []
        self._report_use(AccessMode.WRITE)
        if self._semantics.batch_is_unit:
            self.host.send_request(OpenBatch())

    def end_coalescing(self) -> list[SimulatedWork | FailedWork]:
        """Return the works of the calls since `start_coalescing`."""
        if self._coalesced is None:
            raise RuntimeError("coalescing has not been started: call _start_coalescing first")
        works, self._coalesced = self._coalesced, None
        self._report_use(AccessMode.WRITE)
        if self._semantics.batch_is_unit:
            self.host.send_request(CloseBatch())
        return works

    def _report_use(self, mode: AccessMode) -> None:
        """Report that the caller uses the group as it is now, or destroys or changes it."""
        self.host.report_shared_access(Access(group_object(self.rank, self.label), mode))

    def _collect_work(self, work: SimulatedWork | FailedWork) -> SimulatedWork | FailedWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _wait_before_backward_ends(work: SimulatedWork, *, at_once: bool) -> None:
    """Note [Waiting inside backward].

    The Reducer waits for its buckets in C++ (Reducer::finalize_backward, torch/csrc/distributed/c10d/reducer.cpp),
    where no switch is possible. It does so in an engine callback queued after its last call. Callbacks run in the
    order they were queued, so one queued here, when the call is issued, waits cooperatively before that, and the
    Reducer finds all done. A program that issued the call has not waited for it by this, see `HazardWatch`.
    """
    if at_once:
        work.await_completion()
    else:
        Variable._execution_engine.queue_callback(work.await_completion)


def gpu_of(tensors: Iterable[Any], world_size: int) -> str | None:
    """Return the machine and the number of the GPU on which tensors lie. None if there are fewer GPUs than ranks, so
    that some rank is on another machine."""
    index = next((each.device.index for each in tensors if isinstance(each, torch.Tensor) and each.is_cuda), None)
    if index is None or torch.cuda.device_count() < world_size:
        return None
    visible = dict(enumerate(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    return f"{socket.gethostname()}:{visible.get(index, index)}"  # which differs between simulated hosts
