"""Tensors of a call that is not waited for hold what shows: NaN, or the largest number of the type.

Note [Poison]. A backend may read a call's inputs, and write its outputs, at any time between the issue and the wait.
Here both happen at one moment, so a program that reads too early may find what it hoped for, by luck. With
`poison=True` a call moves copies: of its inputs as they are when it is issued, and of its outputs, which are copied
back when the program waits, finds the call complete, or is called by its future (a bucket of a wrapper: when its
completion is delivered). Until then the outputs are poisoned. A program that waits gets the same numbers as without.
What a program writes meanwhile, be it through numpy, is told by comparing: outputs with the poison, inputs with the
copy. Twice NaN is NaN, so torch's version counters are asked, too, of tensors that share theirs with no others.

What lies in an output and is an input of its own, as a rank's part where all_gather gathers in place, keeps what it
holds.
Calls that wait inside (`async_op=False`, `send`, `recv`) need none of this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ddpsim.simulator.calls import Phase, Signature
from ddpsim.simulator.transport.payload import Payload

_MAKING_CALLS = "distributed_c10d.py"
_WAIT_INSIDE = frozenset({"send", "recv"})
_FRAMES = 12
"""How far out torch's function is looked for."""

_PHASES = frozenset({Phase.USER, Phase.BUCKET})


class Poisoned:
    """One call's tensors while it is in flight."""

    __slots__ = ("_copies", "_is_revealed", "_outputs", "_versions", "brought", "moved")

    def __init__(self, brought: Payload, outputs: Sequence[Tensor]) -> None:
        """`brought` are the rank's own tensors, of which the call is to write `outputs`."""
        self.brought = brought
        self._outputs = outputs
        self._is_revealed = False
        tensors = {id(tensor): tensor for tensor in (*brought.inputs, *brought.outputs)}
        self._copies = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        inputs = self._copied(brought.inputs)
        self.moved = brought._replace(
            inputs=inputs, outputs=inputs if brought.outputs is brought.inputs else self._copied(brought.outputs)
        )
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for tensor in outputs:
                tensor.fill_(_poison(tensor))
            for tensor in self._pure_inputs():
                if outputs:
                    tensor.copy_(self._copies[id(tensor)])
        self._versions = [(tensor, tensor._version) for tensor in tensors.values() if _has_own_version(tensor)]

    def has_changed(self, pending: Any) -> bool:
        """True if the program has written to the tensors since the call was issued."""
        if self._is_revealed:
            return False
        if any(tensor._version != version for tensor, version in self._versions):
            return True
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return any(not _is_poison(tensor) for tensor in self._outputs if not self._holds_input(tensor)) or any(
                not _same(tensor, self._copies[id(tensor)]) for tensor in self._pure_inputs()
            )

    def reveal(self) -> None:
        """The program may look: let it have the results."""
        if self._is_revealed:
            return
        self._is_revealed = True
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for tensor in self._outputs:
                tensor.copy_(self._copies[id(tensor)])

    def _copied(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self._copies[id(tensor)] for tensor in tensors]

    def _pure_inputs(self) -> list[Tensor]:
        outputs = {id(tensor) for tensor in self.brought.outputs}
        return [tensor for tensor in self.brought.inputs if id(tensor) not in outputs]

    def _holds_input(self, output: Tensor) -> bool:
        storage = output.untyped_storage().data_ptr()
        return any(tensor.untyped_storage().data_ptr() == storage for tensor in self._pure_inputs())


def poisoned(signature: Signature, payload: Payload, phase: Phase, rank: int) -> Poisoned | None:
    """The tensors of a call that is being issued, if they are to be poisoned."""
    if phase not in _PHASES or not (payload.inputs or payload.outputs) or _waits_inside():
        return None
    if any(not _can_be_copied(tensor) for tensor in (*payload.inputs, *payload.outputs)):
        return None
    return Poisoned(payload, _written(signature, payload, rank))


def _written(signature: Signature, payload: Payload, rank: int) -> Sequence[Tensor]:
    """The tensors that the call is to write on a rank."""
    root = signature.root
    if root is not None and signature.operation in ("reduce", "gather") and root != rank:
        return ()
    return () if signature.operation == "broadcast" and root == rank else payload.outputs


def _can_be_copied(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided and not tensor.is_meta


def _waits_inside() -> bool:
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_code.co_filename.endswith(_MAKING_CALLS):
            if frame.f_code.co_name in _WAIT_INSIDE:
                return True
            told = frame.f_locals.get("async_op")
            if told is not None:
                return not told
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _has_own_version(tensor: Tensor) -> bool:
    """True if a new version is a change of this tensor: it has its storage to itself."""
    return not tensor.is_inference() and tensor.nbytes >= tensor.untyped_storage().nbytes()


def _poison(tensor: Tensor) -> Any:
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    return True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max


def _is_poison(tensor: Tensor) -> bool:
    return bool((tensor != tensor if _is_number(tensor) else tensor == _poison(tensor)).all())


def _same(first: Tensor, second: Tensor) -> bool:
    return bool(((first == second) | (first != first) & (second != second)).all())


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
