"""Do the calls that met agree? Pure comparison of signatures and origins.

What must agree follows what gloo and NCCL require of the operation. Nobody is judged by who came first: the callers
get the code of the first field that differs, and `minority` says which ranks stand against the most common value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from simulator.calls import Call, Phase, Shape, Signature
from simulator.verdict import Code

_FREE_ROWS = frozenset({"all_to_all_single"})
"""Operations whose first dimension may differ by rank: the splits say how."""
_FREE_SHAPES = frozenset({"all_to_all"})


def disagreement(calls: Sequence[Call]) -> Code | None:
    """The first field in which calls of one slot differ; None if they agree. `calls` stand in group-rank order."""
    first = calls[0].signature
    if any(call.signature is not first and call.signature != first for call in calls):
        for code, values in _compared(calls):
            if any(value != values[0] for value in values):
                return code
    if any(call.signature.splits for call in calls) and not _splits_fit([call.signature for call in calls]):
        return Code.MISMATCH_SPLITS
    return Code.MISMATCH_ORIGIN if _origins_differ(calls) else None


def compared_values(calls: Sequence[Call], code: Code) -> list[Hashable]:
    """What each call has in the field that `code` speaks of."""
    if code is Code.MISMATCH_ORIGIN:
        return [(c.origin.phase, c.origin.wrapper, c.origin.bucket, c.origin.step) for c in calls]
    if code is Code.MISMATCH_SPLITS:
        return [c.signature.splits for c in calls]
    return next(list(values) for found, values in _compared(calls) if found is code)


def minority(calls: Sequence[Call], code: Code) -> tuple[int, ...]:
    """The ranks that stand against the most common value; all of them if no value is the most common one."""
    values = compared_values(calls, code)
    (value, count), *others = Counter(values).most_common()
    if not others or others[0][1] == count:
        return tuple(sorted(call.rank for call in calls))
    return tuple(sorted(call.rank for call, own in zip(calls, values, strict=True) if own != value))


def pair_disagreement(send: Call, receive: Call) -> Code | None:
    """The field in which a message differs from the buffer it is received into; None if it fits."""
    if send.signature.dtype != receive.signature.dtype:
        return Code.MISMATCH_DTYPE
    if _elements(send.signature.shapes) != _elements(receive.signature.shapes):
        return Code.MISMATCH_SHAPE
    return Code.MISMATCH_ORIGIN if _origins_differ((send, receive)) else None


def call_sites_differ(calls: Sequence[Call]) -> bool:
    """True if the user's program made the calls from different lines (legal, but worth a look)."""
    first = calls[0]
    return first.origin.phase is Phase.USER and any(
        call.site is not first.site and (call.site.path, call.site.line) != (first.site.path, first.site.line)
        for call in calls
    )


def _compared(calls: Sequence[Call]) -> Iterable[tuple[Code, list[Hashable]]]:
    signatures = [call.signature for call in calls]
    yield Code.MISMATCH_OPERATION, [s.operation for s in signatures]
    yield Code.MISMATCH_GROUP, [s.members for s in signatures]
    yield Code.MISMATCH_ROOT, [s.root for s in signatures]
    yield Code.MISMATCH_DTYPE, [s.dtype for s in signatures]
    yield Code.MISMATCH_SHAPE, [_bound_shapes(s) for s in signatures]
    yield Code.MISMATCH_REDUCTION, [s.reduction for s in signatures]


def _bound_shapes(signature: Signature) -> tuple[Shape, ...]:
    if signature.operation in _FREE_SHAPES:
        return ()
    if signature.operation in _FREE_ROWS:
        return tuple(shape[1:] for shape in signature.shapes)
    return signature.shapes


def _splits_fit(signatures: Sequence[Signature]) -> bool:
    """What rank i sends to rank j is what rank j expects from rank i."""
    splits = [signature.splits for signature in signatures]
    if any(split is None or len(split[0]) != len(splits) or len(split[1]) != len(splits) for split in splits):
        return False
    sent = [split[0] for split in splits if split]
    expected = [split[1] for split in splits if split]
    return all(sent[i][j] == expected[j][i] for i in range(len(sent)) for j in range(len(sent)))


def _origins_differ(calls: Sequence[Call]) -> bool:
    known = [call.origin for call in calls if not call.origin.shadow] or [call.origin for call in calls]
    return any(origin is not known[0] and not origin.belongs_with(known[0]) for origin in known) or any(
        call.origin is not known[0] and not call.origin.belongs_with(known[0]) for call in calls
    )


def _elements(shapes: tuple[Shape, ...]) -> int:
    total = 0
    for shape in shapes:
        elements = 1
        for size in shape:
            elements *= size
        total += elements
    return total
