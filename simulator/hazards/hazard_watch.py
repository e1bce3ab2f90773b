"""Watches the calls of ranks for hazards: code that works in this run, but may hang or give wrong numbers elsewhere.

Each hazard is reported as a `Noticed`, and simulator/diagnosis/hazards.py makes the finding. Changes that bypass
torch's version counters (`.data`, numpy), and reads that early_reads.py does not see, are found only if tensors in
flight are poisoned (poison.py).

Note [Parts]. All views of a storage share one version counter, so for a part of a larger storage (a slice of a flat
buffer) a new version may mean a change of another part. So the content of a part is compared: with a copy from when the
call was issued, and for outputs also with a copy from when the completion is delivered. Not found: changes of outputs
between the last rank's call and the delivery of its completion, and changes of parts that are too large to copy.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from ddpsim.simulator.calls import GREETING, Call, Phase
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.hazards import poison_marks
from ddpsim.simulator.hazards.dropped_results import DroppedResults, copy_of_line
from ddpsim.simulator.hazards.early_reads import EarlyReads, Span, memory_span, overlap_in_memory
from ddpsim.simulator.hazards.poison import PoisonedTensors, written_tensors
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.payload import Payload

_TENSORS_WATCHED = 8
"""The most inputs and outputs of a call that are watched: an all_gather has as many outputs as there are ranks."""

_USER = Phase.USER  # faster to look up, see scheduler.py
_NOTHING = Payload((), ())

_MAKING_CALLS = distributed_c10d._rank_not_in_group.__code__.co_filename
_WAIT_INSIDE = frozenset({"send", "recv"})
_OWN_FRAMES = 4
"""The number of innermost stack frames that are skipped, because they are always the simulator's."""
_FRAMES_OF_CALL = 10
"""The number of stack frames that are searched for the function of torch that makes a call."""
_COPIED_BYTES = 1 << 20
"""A tensor with more bytes that is only a part of a storage is not watched."""


class _WatchedTensor:
    """A watched tensor that is alone in its storage: if its version counter is new, it was changed."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._version = tensor._version

    def has_changed(self, pending: PendingCall) -> bool:
        """Return whether the rank wrote to the tensor since the call was issued."""
        return self._tensor._version != self._version


class _WatchedPart:
    """A watched tensor that is a part of a larger storage. See Note [Parts]."""

    __slots__ = ("_content", "_has_changed", "_is_current", "_is_output", "_tensor", "_version")

    def __init__(self, tensor: Tensor, *, is_output: bool) -> None:
        self._tensor = tensor
        self._is_output = is_output
        self._is_current = not is_output
        """False for an output until its content is copied, after the call has written it."""
        self._has_changed = False
        self._copy_content()

    def _copy_content(self) -> None:
        self._version = self._tensor._version
        self._content = _as_bytes(self._tensor).clone()

    def note_outputs_written_next(self) -> None:
        """Record that the call is about to write its outputs."""
        self._has_changed = self._is_output and self._has_other_content()

    def note_completion_delivered(self) -> None:
        """Record that the call has written its outputs, and that its rank is about to run again."""
        if self._is_output:
            self._copy_content()
            self._is_current = True

    def has_changed(self, pending: PendingCall) -> bool:
        """Return whether the rank wrote to the tensor since the call was issued."""
        can_tell = self._is_current or not pending.is_complete
        return self._has_changed or (can_tell and self._has_other_content())

    def _has_other_content(self) -> bool:
        return self._tensor._version != self._version and not torch.equal(_as_bytes(self._tensor), self._content)


class _CallInFlight:
    """A call that its rank has not waited for yet."""

    __slots__ = ("_passed_tensors", "_read", "_written", "is_on_nccl_stream", "is_sharing", "pending", "watched")

    def __init__(self, pending: PendingCall, watched: "Sequence[_Watched]", brought: Payload) -> None:
        self.pending = pending
        self.watched = watched
        """The watched tensors of the call."""
        self.is_sharing = False
        """The tensors of the call that are watched for changes."""
        self._passed_tensors = brought
        """The tensors that the rank passed to the call."""
        self.is_on_nccl_stream = brought.gpu is not None and pending.call.peer is None and pending.poisoned is None
        """NCCL runs the group's earlier collectives first. Not if poisoned: those reveal their results by a wait."""
        self._read: Sequence[Span] | None = None
        self._written: Sequence[Span] = ()

    @property
    def watched_parts(self) -> list[_WatchedPart]:
        """The watched tensors of the call that are only parts of a storage."""
        return [each for each in self.watched if isinstance(each, _WatchedPart)]

    def has_changed_tensors(self) -> bool:
        """Return whether the rank changed the call's tensors."""
        return any(each.has_changed(self.pending) for each in self.watched)

    def shares_memory_with(self, other: "_CallInFlight") -> bool:
        """Return whether two calls use the same memory, and at least one of them writes it."""
        mine, theirs = self.memory_spans(), other.memory_spans()
        return overlap_in_memory(mine[1], theirs[0]) or overlap_in_memory(theirs[1], mine[0])

    def writes_over_outputs(self) -> bool:
        """Return whether outputs that are no inputs, and so get different values, share memory."""
        inputs, outputs, *_ = self._passed_tensors
        if inputs is outputs or len(outputs) < 2:
            return False
        return any(start < end for (_, end), (start, _) in pairwise(sorted(self.memory_spans()[1])))

    def memory_spans(self) -> tuple[Sequence[Span], Sequence[Span]]:
        """Return the memory that the call reads or writes on its rank, and which part of that memory it may write."""
        if self._read is None:
            inputs, outputs, *_ = self._passed_tensors
            call = self.pending.call
            touched = inputs if inputs is outputs else (*inputs, *outputs)
            is_source = call.signature.operation == "broadcast" and call.signature.root == call.rank
            self._read = [memory_span(tensor) for tensor in touched[:_TENSORS_WATCHED]]
            self._written = () if is_source else [memory_span(tensor) for tensor in outputs[:_TENSORS_WATCHED]]
        return self._read, self._written


class _CallsOfRank(dict[int, _CallInFlight]):
    """The calls of one rank in flight, by handle (id). Those that use some part of memory are found without a look at
    each.

    A part of up to 2**n bytes, and of more than half as many, lies in one or two cells of 2**n bytes. The cells are
    filled when a second call is issued, since most programs have one in flight.
    """

    def __init__(self) -> None:
        super().__init__()
        self._new: list[_CallInFlight] = []
        self._cells: dict[int, dict[int, dict[int, _CallInFlight]]] = {}
        """By n and number of the cell: the calls, by handle."""

    def add(self, call: _CallInFlight) -> None:
        """Add a call that was issued."""
        self[call.pending.handle] = call
        self._new.append(call)

    def settle(self, handle: int) -> _CallInFlight | None:
        """Remove and return the call of a handle, if it is in flight."""
        call = self.pop(handle, None)
        if not self:
            self._new.clear()
            self._cells.clear()
        elif call is not None:  # its tensors may go
            for cell in self._cells_of(call):
                cell.pop(handle, None)
        return call

    def sharing_with(self, mine: _CallInFlight) -> list[_CallInFlight]:
        """Return the calls in flight that share memory with a further call, if one of the two writes it."""
        for each in self._new:
            if self.get(each.pending.handle) is each:
                for cell in self._cells_of(each):
                    cell[each.pending.handle] = each
        self._new.clear()
        near: dict[int, _CallInFlight] = {}
        for start, end in mine.memory_spans()[0]:
            for size, cells in self._cells.items():
                numbers = range(start >> size, (end >> size) + 1)
                for number in numbers if len(numbers) < len(cells) else list(cells):
                    near |= cells.get(number, {})
        return [each for each in near.values() if mine.shares_memory_with(each)]

    def _cells_of(self, call: _CallInFlight) -> Iterator[dict[int, _CallInFlight]]:
        for start, end in call.memory_spans()[0]:
            size = (end - start).bit_length()
            cells = self._cells.setdefault(size, {})
            for number in {start >> size, end >> size}:
                yield cells.setdefault(number, {})


@dataclass(slots=True, eq=False)
class _NumberedCall:
    """A call whose tensors hold poison (NaN values) that contains the number of the call."""

    call: Call
    is_done: bool = False
    """True if further reads of the call's tensors before the wait need not be reported."""


_Watched = _WatchedTensor | _WatchedPart | PoisonedTensors


class HazardWatch:
    """Watches the calls of the ranks of this process for all hazards, in one execution."""

    def __init__(self, world_size: int, ask: Callable[[Noticed], object]) -> None:
        """`ask` is a function that sends a request to the kernel."""
        self._ask = ask
        self._in_flight = [_CallsOfRank() for _ in range(world_size)]
        """By rank, the calls of the program and of communication hooks that were not waited for yet."""
        self._reads = EarlyReads(ask)
        self._dropped = DroppedResults(world_size, ask)
        self.listeners: list[Callable[[PendingCall], None]] = []
        """Functions that are called with each call of the user's program."""
        self.has_poisoned = False
        """True if some call's tensors were poisoned (filled with NaN)."""
        self._undefined: list[list[tuple[Call, ref[Tensor]]]] = [[] for _ in range(world_size)]
        """By rank, the tensors that calls leave with undefined content."""
        self.numbered: dict[int, _NumberedCall] = {}
        """By number, the latest call with that number."""
        self._count = [0] * world_size
        """By rank, how many calls got a number."""
        self._latest_unnumbered: dict[int, _NumberedCall] = {}
        """By rank, the latest call whose tensors have no room for a call number."""

    def mark_number(self, call: Call) -> int:
        """Give a call its number, which its poison (NaN values) contains; after 65535 calls, numbers repeat."""
        number = (self._count[call.rank] * len(self._count) + call.rank) % poison_marks.MOST + 1
        self._count[call.rank] += 1
        numbered = self.numbered[number] = _NumberedCall(call)
        if call.signature.dtype in poison_marks.SHORT:
            self._latest_unnumbered[call.rank] = numbered
        return number

    def _undefined_tensors(self, rank: int) -> Sequence[tuple[Call, Tensor]]:
        """Return the tensors that a rank's calls have left undefined, without tensors that no longer exist."""
        return [(call, tensor) for call, left in self._undefined[rank] if (tensor := left()) is not None]

    def check_for_poison(self, rank: int, value: Any, where: str) -> None:
        """Search a value of the program for poison (marked NaN), and report the calls that were read too early."""
        for number in sorted(poison_marks.call_numbers_in(value)) if self.numbered else ():
            is_unknown = number == poison_marks.UNKNOWN
            numbered = self._latest_unnumbered.get(rank) if is_unknown else self.numbered.get(number)
            if numbered is not None and not numbered.is_done:
                numbered.is_done = True
                self._ask(Noticed(NoticedKind.READ, (numbered.call,), where))

    def call_issued(self, pending: PendingCall) -> None:
        """Record that a rank has issued a call."""
        call = pending.call
        if pending.poisoned is not None:
            self.has_poisoned = True
            self._undefined[call.rank] += [(call, ref(each)) for each in pending.poisoned.undefined]
        mine = self._in_flight[call.rank]
        in_flight = None
        if call.origin.by_hook:
            mine.add(_CallInFlight(pending, (), _NOTHING))  # its tensors are the engine's
        elif call.origin.phase is _USER and call.signature.operation != "monitored_barrier":
            held: PoisonedTensors | None = pending.poisoned
            tensors: Sequence[_Watched] = _watch_tensors(pending.payload) if held is None else [held]
            for listener in self.listeners:
                listener(pending)
            brought = pending.payload if held is None else held.brought
            in_flight = _CallInFlight(pending, tensors, brought)
            if mine:
                self._report_shared_memory(in_flight, mine.sharing_with(in_flight))
            if in_flight.writes_over_outputs():
                self._report_hazard(NoticedKind.OUTPUTS_SHARED, call)
            mine.add(in_flight)
            if tensors and (parts := in_flight.watched_parts):
                pending.when_delivered[:0] = [part.note_completion_delivered for part in parts]
            dropped = self._dropped
            if dropped.changed[call.rank]:
                dropped.report(call.rank)
            if not is_synchronous_call():
                if written := written_tensors(call.signature, brought, call.rank):
                    self._reads.watch_outputs(call, written[:_TENSORS_WATCHED])
            elif held is None and (copy := copy_of_line(call.site)) is not None:
                dropped.call_issued(pending, brought, copy)
        is_sharing = in_flight is not None and in_flight.is_sharing
        only_writes = call.signature.operation == "broadcast" and call.signature.root != call.rank
        is_read = bool(self.numbered) and not is_sharing and not only_writes
        if is_read and any(map(poison_marks.may_hold_mark, pending.payload.inputs)):
            where = f"what was brought to {call.operation} #{call.sequence} at {call.site}"
            self.check_for_poison(call.rank, pending.payload.inputs, where)

    def call_settled(self, pending: PendingCall) -> None:
        """Record that a rank waits for a call or has found it complete: from now on it may use the call's tensors."""
        mine = self._in_flight[pending.call.rank]
        in_flight = mine.settle(pending.handle)
        if self._reads.held:
            self._reads.forget_call(pending.call)
        is_on_stream = in_flight is not None and in_flight.is_on_nccl_stream
        # A barrier of gloo waits for the group's earlier collectives, too; NCCL runs them one after another.
        for other in list(mine.values()) if mine and (is_on_stream or pending.call.operation == "barrier") else ():
            call = other.pending.call
            if call.group == pending.call.group and call.peer is None and call.sequence < pending.call.sequence:
                self._reads.forget_call(call)
                if is_on_stream:
                    self.call_settled(other.pending)
        if in_flight is not None and not in_flight.is_sharing and in_flight.has_changed_tensors():
            self._report_hazard(NoticedKind.CHANGED, pending.call)

    def unwaited_calls(self, rank: int) -> Sequence[Call]:
        """Return the calls of the user's program that a rank has not waited for yet."""
        calls = [each.pending.call for each in self._in_flight[rank].values()]
        return [call for call in calls if call.origin.phase is _USER]

    def poisoned_calls(self, rank: int) -> Sequence[Call]:
        """Return a rank's calls with poisoned (NaN) tensors: those in flight, and those with undefined tensors."""
        pendings = [each.pending for each in self._in_flight[rank].values()]
        in_flight = [pending.call for pending in pendings if pending.poisoned is not None]
        left = [call for call, tensor in self._undefined_tensors(rank) if poison_marks.may_hold_poison(tensor)]
        return in_flight + [call for call in left if call not in in_flight]

    def program_returned(self, rank: int, value: Any) -> None:
        """Search the value that a rank's program returned for reads before a wait, except in calls without a wait."""
        unwaited = [each.pending.call for each in self._in_flight[rank].values()]
        for numbered in (*self.numbered.values(), *self._latest_unnumbered.values()) if unwaited else ():
            numbered.is_done = numbered.is_done or any(numbered.call is each for each in unwaited)
        self.check_for_poison(rank, value, "what the program returned")

    def collective_matched(self, pendings: Sequence[PendingCall]) -> None:
        """Record that the calls of a collective are matched between ranks, and are about to write their outputs."""
        for pending in pendings:
            in_flight = self._in_flight[pending.call.rank].get(pending.handle)
            if in_flight is not None and pending.call.peer is None:
                for part in in_flight.watched_parts:
                    part.note_outputs_written_next()

    def rank_ended(self, rank: int) -> None:
        """Record that a rank's program returned."""
        self._dropped.report(rank)
        self._remove_marks(rank)
        for each in list(self._in_flight[rank].values()):
            self.call_settled(each.pending)
            self._report_hazard(NoticedKind.UNWAITED, each.pending.call)

    def run_ended(self) -> None:
        """Record that no rank runs any more."""
        for rank in range(len(self._in_flight)):
            self._remove_marks(rank)
        self._reads.forget_call(None)

    def _report_hazard(self, kind: NoticedKind, call: Call) -> None:
        self._ask(Noticed(kind, (call,)))

    def _report_shared_memory(self, mine: _CallInFlight, sharing: Sequence[_CallInFlight]) -> None:
        """Report a call that shares memory with other calls in flight, if one of these calls writes the shared memory.
        Not reported: the first messages of a pipeline in torch 2.11, which share a tensor that nothing reads."""
        if sharing:
            part = mine.pending.call.origin.part
            if part is None or part.what != GREETING:
                self._report_hazard(NoticedKind.SHARED, mine.pending.call)
            for each in (mine, *sharing):
                each.is_sharing = True

    def _remove_marks(self, rank: int) -> None:
        """Remove the calls' numbers from poisoned memory (NaN), which later tensors may use without writing to it."""
        if not self.has_poisoned:
            return
        for each in self._in_flight[rank].values():
            if each.pending.poisoned is not None:
                each.pending.poisoned.remove_marks()
        for _, tensor in self._undefined_tensors(rank):
            poison_marks.remove_marks(tensor)


def _watch_tensors(payload: Any) -> Sequence[_WatchedTensor | _WatchedPart]:
    outputs, inputs = payload.outputs[:_TENSORS_WATCHED], payload.inputs[:_TENSORS_WATCHED]
    tensors = [(tensor, True) for tensor in outputs]
    if payload.inputs is not payload.outputs:
        tensors += [(tensor, False) for tensor in inputs]
    watched: list[_WatchedTensor | _WatchedPart] = []
    for tensor, is_output in tensors:
        if tensor.is_inference():
            continue  # it has no version
        if tensor.layout is not torch.strided or tensor.nbytes >= tensor.untyped_storage().nbytes():
            watched.append(_WatchedTensor(tensor))
        elif tensor.nbytes <= _COPIED_BYTES:
            watched.append(_WatchedPart(tensor, is_output=is_output))
    return watched


def is_synchronous_call() -> bool:
    """True if the function of torch that makes the current call waits for it."""
    frame: FrameType | None = sys._getframe(_OWN_FRAMES)
    for _ in range(_FRAMES_OF_CALL):
        if frame is None:
            return False
        if frame.f_code.co_filename == _MAKING_CALLS:
            if frame.f_code.co_name in _WAIT_INSIDE:
                return True
            is_async = frame.f_locals.get("async_op")
            if is_async is not None:
                return not is_async
        frame = frame.f_back
    return False


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
