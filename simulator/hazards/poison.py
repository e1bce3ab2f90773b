"""Poison: until the wait, the outputs of a call hold NaN, or the largest integer, so that early reads are found.

Note [Poison]. A backend may read a call's inputs, and write its outputs, at any time between the issue and the wait.
The simulator does both at one time, so a program that reads too early may get the right numbers by luck. With
`poison=True` a call works on copies of its inputs and outputs. The outputs are copied back when the program waits,
finds the call complete, or is called by its future (a bucket of a wrapper: when its completion is delivered). Until
then the outputs are poisoned. Writes of the program in between are found by comparison: outputs with the poison, inputs
with the copy. The version counters of tensors with their own storage find writes that leave NaN. Reads are found when
poisoned values are in results of the program, in tensors of other calls, or in compared replicas; the NaN contains the
number of its call, see Note [Marks] in poison_marks.py.

An input that is a part of an output, as in an all_gather in place, keeps its contents. Calls that wait inside
(`async_op=False`, `send`, `recv`) are not poisoned, except a `reduce` on ranks that are not its root: its tensors are
undefined there (gloo: partial sums; NCCL: unchanged), so they stay poisoned.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddpsim.simulator.calls import Call, Phase, Signature
from ddpsim.simulator.hazards import poison_marks
from ddpsim.simulator.transport.payload import Payload

_USER, _BUCKET = Phase.USER, Phase.BUCKET  # faster to look up, see scheduler.py


class PoisonedTensors:
    """The tensors of one call in flight that are poisoned: filled with NaN until the wait."""

    def __init__(
        self, brought: Payload, outputs: Sequence[Tensor], number: int, *, undefined: Sequence[Tensor] = ()
    ) -> None:
        """`brought`: the rank's tensors. The call writes `outputs`; the backend may write anything to `undefined`."""
        self.brought = brought
        self.undefined = undefined
        self._number = number
        self._outputs = outputs
        self._is_marked = True
        self._is_revealed = False
        is_in_place = brought.inputs is brought.outputs
        touched = brought.inputs if is_in_place else (*brought.inputs, *brought.outputs)
        tensors = {id(tensor): tensor for tensor in touched}
        with torch._C._AutoDispatchBelowADInplaceOrView():
            self._copies = {key: tensor.clone() for key, tensor in tensors.items()}
            for tensor in outputs:
                poison_marks.fill_with_mark(tensor, number)
            for tensor in self._inputs_only():
                if outputs:
                    tensor.copy_(self._copies[id(tensor)])
        inputs = self._copies_of(brought.inputs)
        copied = inputs if is_in_place else self._copies_of(brought.outputs)
        self.moved = Payload(inputs, copied, *brought[2:])  # as _replace, in a fifth of the time
        self._versions = [(tensor, tensor._version) for tensor in tensors.values() if _has_own_version(tensor)]

    def has_changed(self, pending: Any) -> bool:
        """Return whether the program has written to the call's tensors since the call was issued."""
        if self._is_revealed:
            return False
        if any(tensor._version != version for tensor, version in self._versions):
            return True
        inputs = self._inputs_only()
        number = self._number if self._is_marked else None
        with torch._C._AutoDispatchBelowADInplaceOrView():
            if any(not _share_storage(each, inputs) and not _is_poison(each, number) for each in self._outputs):
                return True
            return any(not _are_equal(tensor, self._copies[id(tensor)]) for tensor in inputs)

    def remove_marks(self) -> None:
        """Remove the call's number from the poison (NaN) in the output tensors."""
        if not self._is_revealed:
            self._is_marked = False
            for tensor in self._outputs:
                poison_marks.remove_marks(tensor)

    def reveal_results(self) -> None:
        """Copy the call's results into the program's tensors, which the program may read from now on."""
        if self._is_revealed:
            return
        self._is_revealed = True
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for tensor in self._outputs:
                tensor.copy_(self._copies[id(tensor)])
            for tensor in self.undefined:
                poison_marks.fill_with_mark(tensor, self._number)

    def _copies_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self._copies[id(tensor)] for tensor in tensors]

    def _inputs_only(self) -> list[Tensor]:
        if self.brought.inputs is self.brought.outputs:
            return []
        outputs = {id(tensor) for tensor in self.brought.outputs}
        return [tensor for tensor in self.brought.inputs if id(tensor) not in outputs]


def poison_call(
    call: Call, payload: Payload, number: Callable[[Call], int], is_synchronous: Callable[[], bool]
) -> PoisonedTensors | None:
    """Fill the tensors of a call that is being issued with poison (NaN); return None if it needs or allows none."""
    phase, tensors = call.origin.phase, (*payload.inputs, *payload.outputs)
    if not (phase is _USER or phase is _BUCKET) or not tensors:
        return None
    undefined: Sequence[Tensor] = ()
    if phase is _USER and call.leaves_undefined:
        undefined = [tensor for tensor in payload.inputs if poison_marks.has_room_for_signature(tensor)]
    if not undefined and is_synchronous():
        return None
    if not all(map(poison_marks.is_plain_tensor, tensors)):
        return None
    written = written_tensors(call.signature, payload, call.rank)
    return PoisonedTensors(payload, written, number(call), undefined=undefined)


def written_tensors(signature: Signature, payload: Payload, rank: int) -> Sequence[Tensor]:
    """Return the tensors that the call writes on one rank."""
    root = signature.root
    if root is not None and signature.operation in ("reduce", "gather") and root != rank:
        return ()
    return payload.outputs[1:] if signature.operation == "broadcast" and root == rank else payload.outputs


def _share_storage(output: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Return whether an input of the call lies in the same storage as one of its outputs."""
    if not inputs:
        return False
    storage = output.untyped_storage().data_ptr()
    return any(tensor.untyped_storage().data_ptr() == storage for tensor in inputs)


def _has_own_version(tensor: Tensor) -> bool:
    """Return whether a new version counter means that this tensor was changed: no other tensor uses its storage."""
    return not tensor.is_inference() and tensor.nbytes >= tensor.untyped_storage().nbytes()


def _is_poison(tensor: Tensor, number: int | None) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool((tensor != tensor).all())
    return bool((tensor == poison_marks.integer_mark(tensor.dtype, number)).all())


def _are_equal(first: Tensor, second: Tensor) -> bool:
    return bool(((first == second) | (first != first) & (second != second)).all())
