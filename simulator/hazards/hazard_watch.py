"""Watches the calls of ranks for hazards: what passes here, and may hang or give wrong numbers elsewhere.

Each hazard is noticed as a `Noticed`, and worded in simulator/diagnosis/hazards.py. Reading a tensor before the wait is
not noticed, nor is a change that bypasses torch's version counters (`.data`, numpy), unless tensors in flight are
poisoned: then contents are compared (poison.py), and numbers in them show reads (early_reads.py).

Note [Parts]. All that views one storage shares one version counter, so for a part of a larger storage (a slice of a
flat buffer) a new version may speak of another part. There the content decides: it is copied when the call is issued,
and anew, for what the call writes, when its completion is delivered. What lies in between is compared when the slot
fills, before the data moves. The rank that fills a slot itself gets its completion later, and what it writes into its
outputs until then goes unnoticed, as does any change of a part too large to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ddpsim.simulator.calls import GREETING, Call, Phase
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.hazards.poison import Poisoned
from ddpsim.simulator.hazards.poison_marks import MOST, SHORT, UNKNOWN, holds_poison, may_hold_mark, numbers_in, unmark
from ddpsim.simulator.runtime.host import Pending
from ddpsim.simulator.transport.payload import Payload

_TENSORS_WATCHED = 8
"""Of each call's inputs and outputs: all_gather has as many outputs as there are ranks."""

_USER = Phase.USER  # faster to look up, see scheduler.py
_NOTHING = Payload((), ())
_COPIED_BYTES = 1 << 20
"""A part of a storage larger than this is not watched."""

_Span = tuple[int, int]
"""Where memory begins and ends."""


class _Whole:
    """A tensor that has its storage to itself: a new version is a change."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._version = tensor._version

    def has_changed(self, pending: Pending) -> bool:
        """True if its owner wrote to it since the call was issued."""
        return self._tensor._version != self._version


class _Part:
    """A tensor that is a part of a larger storage. See Note [Parts]."""

    __slots__ = ("_content", "_has_changed", "_is_current", "_is_output", "_tensor", "_version")

    def __init__(self, tensor: Tensor, *, is_output: bool) -> None:
        self._tensor = tensor
        self._is_output = is_output
        self._is_current = not is_output
        """False for an output until its content was copied after the call had written it."""
        self._has_changed = False
        self._copy()

    def _copy(self) -> None:
        self._version = self._tensor._version
        self._content = _bytes(self._tensor).clone()

    def slot_fills(self) -> None:
        """The call writes its outputs next."""
        self._has_changed = self._is_output and self._differs()

    def is_delivered(self) -> None:
        """The call has written its outputs, and the owner is about to run again."""
        if self._is_output:
            self._copy()
            self._is_current = True

    def has_changed(self, pending: Pending) -> bool:
        """True if its owner wrote to it since the call was issued."""
        can_tell = self._is_current or not pending.is_complete
        return self._has_changed or (can_tell and self._differs())

    def _differs(self) -> bool:
        return self._tensor._version != self._version and not torch.equal(_bytes(self._tensor), self._content)


class _InFlight:
    """A call that was not waited for yet."""

    __slots__ = ("_brought", "_read", "_written", "is_sharing", "pending", "watched")

    def __init__(self, pending: Pending, watched: Sequence[_Whole | _Part | Poisoned], brought: Payload) -> None:
        self.pending = pending
        self.watched = watched
        """What tells whether its tensors change."""
        self.is_sharing = False
        """Another call has memory in common with it, and may change its tensors."""
        self._brought = brought
        """The tensors."""
        self._read: Sequence[_Span] | None = None
        self._written: Sequence[_Span] = ()

    @property
    def parts(self) -> list[_Part]:
        """Its tensors that are parts of larger storages."""
        return [each for each in self.watched if isinstance(each, _Part)]

    def has_changed(self) -> bool:
        """True if its owner changed its tensors."""
        return any(each.has_changed(self.pending) for each in self.watched)

    def shares_with(self, other: _InFlight) -> bool:
        """True if one of two calls writes where the other one reads or writes."""
        mine, theirs = self._memory(), other._memory()
        return _meet(mine[1], theirs[0]) or _meet(theirs[1], mine[0])

    def _memory(self) -> tuple[Sequence[_Span], Sequence[_Span]]:
        """What it may read or write, and what of it it may write on its rank: a broadcast only reads its root's.

        Looked up once, when there is another call to compare with: each is compared with all others in flight.
        """
        if self._read is None:
            inputs, outputs, signature = self._brought.inputs, self._brought.outputs, self.pending.call.signature
            touched = inputs if inputs is outputs else (*inputs, *outputs)
            is_source = signature.operation == "broadcast" and signature.root == self.pending.call.rank
            self._read = [_span(tensor) for tensor in touched[:_TENSORS_WATCHED]]
            self._written = () if is_source else [_span(tensor) for tensor in outputs[:_TENSORS_WATCHED]]
        return self._read, self._written


class HazardWatch:
    """Watches the ranks of this process in one execution."""

    def __init__(self, world_size: int, ask: Callable[[Noticed], object]) -> None:
        """`ask` hands a request to the kernel."""
        self._ask = ask
        self._in_flight: list[dict[int, _InFlight]] = [{} for _ in range(world_size)]
        """The user's calls, and communication hooks', that were not waited for yet, by rank and handle."""
        self._reads = EarlyReads(world_size, ask)
        self.listeners: list[Callable[[Pending], None]] = []
        """Called with each of the user's calls."""

    @property
    def has_poisoned(self) -> bool:
        """Tensors of some call were poisoned."""
        return self._reads.has_poisoned

    def issued(self, pending: Pending) -> None:
        """A rank issued a call."""
        call = pending.call
        if pending.poisoned is not None:
            self._reads.issued(pending)
        mine = self._in_flight[call.rank]
        in_flight = None
        if call.origin.by_hook:
            mine[pending.handle] = _InFlight(pending, (), _NOTHING)  # its tensors are the engine's
        elif call.origin.phase is _USER and call.signature.operation != "monitored_barrier":
            held: Poisoned | None = pending.poisoned
            tensors: Sequence[_Whole | _Part | Poisoned] = [held] if held is not None else _watched(pending.payload)
            for listener in self.listeners:
                listener(pending)
            in_flight = _InFlight(pending, tensors, pending.payload if held is None else held.brought)
            if mine:
                self._look_for_shared(in_flight, mine.values())
            mine[pending.handle] = in_flight
            if tensors and (parts := in_flight.parts):
                _see_delivery(pending, parts)
        is_sharing = in_flight is not None and in_flight.is_sharing
        if (
            self._reads.numbered
            and not is_sharing
            and not _only_writes(call)
            and any(map(may_hold_mark, pending.payload.inputs))
        ):
            where = f"what was brought to {call.operation} #{call.sequence} at {call.site}"
            self.came_to_light(call.rank, pending.payload.inputs, where)

    def settled(self, pending: Pending) -> None:
        """The owner of a call waits for it, or has found it complete: from here on the tensors are its own again."""
        in_flight = self._in_flight[pending.call.rank].pop(pending.handle, None)
        if in_flight is not None and not in_flight.is_sharing and in_flight.has_changed():
            self._notice(NoticedKind.CHANGED, pending.call)

    def unwaited(self, rank: int) -> Sequence[Call]:
        """The user's calls that a rank has not waited for yet."""
        calls = [each.pending.call for each in self._in_flight[rank].values()]
        return [call for call in calls if call.origin.phase is _USER]

    def poisoned(self, rank: int) -> Sequence[Call]:
        """Those whose tensors are poisoned: of the calls in flight, and of calls that leave their tensors undefined."""
        pendings = [each.pending for each in self._in_flight[rank].values()]
        in_flight = [pending.call for pending in pendings if pending.poisoned is not None]
        left = self._reads.left_undefined(rank)
        return in_flight + [call for call, tensor in left if holds_poison(tensor) and call not in in_flight]

    def number(self, call: Call) -> int:
        """A number for a call whose tensors are to hold it."""
        return self._reads.number(call)

    def came_to_light(self, rank: int, value: Any, where: str) -> None:
        """A value that a program has made may show that it read tensors of calls before it had waited."""
        self._reads.came_to_light(rank, value, where)

    def returned(self, rank: int, value: Any) -> None:
        """What a program returned. Calls that it never waited for are another finding than calls read early."""
        self._reads.leave_out([each.pending.call for each in self._in_flight[rank].values()])
        self.came_to_light(rank, value, "what the program returned")

    def slot_filled(self, pendings: Sequence[Pending]) -> None:
        """The calls of a collective met and agree, and write their outputs next."""
        for pending in pendings:
            in_flight = self._in_flight[pending.call.rank].get(pending.handle)
            if in_flight is not None and pending.call.peer is None:
                for part in in_flight.parts:
                    part.slot_fills()

    def rank_ended(self, rank: int) -> None:
        """A rank's program returned."""
        self._unmark(rank)
        for each in list(self._in_flight[rank].values()):
            self.settled(each.pending)
            self._notice(NoticedKind.UNWAITED, each.pending.call)

    def run_ended(self) -> None:
        """No rank runs any more."""
        for rank in range(len(self._in_flight)):
            self._unmark(rank)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _notice(self, kind: NoticedKind, call: Call) -> None:
        self._ask(Noticed(kind, (call,)))

    def _look_for_shared(self, mine: _InFlight, others: Iterable[_InFlight]) -> None:
        """Calls in flight may read what they have in common; none may write it, but for greetings of a pipeline.

        Those of torch 2.11 share a tensor that nobody reads.
        """
        sharing = [other for other in others if mine.shares_with(other)]
        if sharing:
            part = mine.pending.call.origin.part
            if part is None or part.what != GREETING:
                self._notice(NoticedKind.SHARED, mine.pending.call)
            for each in (mine, *sharing):
                each.is_sharing = True

    def _unmark(self, rank: int) -> None:
        """Leave no number in memory, which somebody may take without writing to it."""
        if not self.has_poisoned:
            return
        for each in self._in_flight[rank].values():
            if each.pending.poisoned is not None:
                each.pending.poisoned.unmark()
        for _, tensor in self._reads.left_undefined(rank):
            unmark(tensor)


def _see_delivery(pending: Pending, parts: Sequence[_Part]) -> None:
    deliver = pending.receive_completion

    def receive_completion() -> None:
        for part in parts:
            part.is_delivered()
        deliver()

    pending.receive_completion = receive_completion


def _watched(payload: Any) -> Sequence[_Whole | _Part]:
    if not (payload.outputs or payload.inputs):
        return ()
    outputs, inputs = payload.outputs[:_TENSORS_WATCHED], payload.inputs[:_TENSORS_WATCHED]
    tensors = [(tensor, True) for tensor in outputs]
    if payload.inputs is not payload.outputs:
        tensors += [(tensor, False) for tensor in inputs]
    watched: list[_Whole | _Part] = []
    for tensor, is_output in tensors:
        if tensor.is_inference():
            continue  # it has no version
        if tensor.layout is not torch.strided or tensor.nbytes >= tensor.untyped_storage().nbytes():
            watched.append(_Whole(tensor))
        elif tensor.nbytes <= _COPIED_BYTES:
            watched.append(_Part(tensor, is_output=is_output))
    return watched


def _only_writes(call: Call) -> bool:
    """True for a broadcast on other ranks than its root, where its tensors may hold anything before."""
    return call.signature.operation == "broadcast" and call.signature.root != call.rank


def _meet(written: Sequence[_Span], others: Sequence[_Span]) -> bool:
    for start, end in written:
        for other_start, other_end in others:
            if start < other_end and other_start < end:
                return True
    return False


def _span(tensor: Tensor) -> _Span:
    """The memory that a tensor takes; nothing for one with gaps, in which others may lie."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or not tensor.nbytes:
        return 0, 0
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


class _Numbered:
    """A call whose tensors hold its number."""

    __slots__ = ("call", "is_done")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_done = False
        """It is noticed, or another hazard is."""


class EarlyReads:
    """Those of the ranks of this process in one execution."""

    def __init__(self, world_size: int, ask: Callable[[Noticed], object]) -> None:
        """`ask` hands a request to the kernel."""
        self._ask = ask
        self.has_poisoned = False
        """Tensors of some call were poisoned."""
        self._undefined: list[list[tuple[Call, ref[Tensor]]]] = [[] for _ in range(world_size)]
        """The tensors that calls leave undefined, by rank."""
        self.numbered: dict[int, _Numbered] = {}
        """The latest call with each number."""
        self._count = [0] * world_size
        """How many calls got a number, by rank."""
        self._short: dict[int, _Numbered] = {}
        """The latest whose tensors had no room for the number, by rank."""

    def number(self, call: Call) -> int:
        """A number for a call whose tensors are to hold it; of many thousands of calls, several have the same."""
        number = (self._count[call.rank] * len(self._count) + call.rank) % MOST + 1
        self._count[call.rank] += 1
        numbered = self.numbered[number] = _Numbered(call)
        if call.signature.dtype in SHORT:
            self._short[call.rank] = numbered
        return number

    def issued(self, pending: Pending) -> None:
        """Note that a rank issued a call whose tensors are poisoned."""
        self.has_poisoned = True
        self._undefined[pending.call.rank] += [(pending.call, ref(each)) for each in pending.poisoned.undefined]

    def left_undefined(self, rank: int) -> Sequence[tuple[Call, Tensor]]:
        """The tensors that a rank's calls have left undefined, and that are still there."""
        return [(call, tensor) for call, left in self._undefined[rank] if (tensor := left()) is not None]

    def leave_out(self, calls: Sequence[Call]) -> None:
        """Do not notice that the tensors of these calls are read."""
        for numbered in (*self.numbered.values(), *self._short.values()) if calls else ():
            numbered.is_done = numbered.is_done or any(numbered.call is each for each in calls)

    def came_to_light(self, rank: int, value: Any, where: str) -> None:
        """A value that a program has made: notice whose tensors it has read."""
        for number in sorted(numbers_in(value)) if self.numbered else ():
            numbered = self._short.get(rank) if number == UNKNOWN else self.numbered.get(number)
            if numbered is not None and not numbered.is_done:
                numbered.is_done = True
                self._ask(Noticed(NoticedKind.READ, (numbered.call,), where))
