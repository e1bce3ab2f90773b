"""Compares the signatures and origins of matched calls.

The fields that must agree are those that gloo and NCCL require for the operation. The order of arrival does not matter:
all callers get the code of the first field that differs, and `ranks_that_differ` the ranks without the most common
value.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import prod

from ddpsim.simulator.calls import Call, Phase, Shape, Signature
from ddpsim.simulator.operations import IN_PROGRAMS, OPERATIONS, POINT_TO_POINT, SplitRule
from ddpsim.simulator.verdict import Code

_BY_SPLITS = frozenset(row.name for row in OPERATIONS.values() if row.splits is not SplitRule.NONE)
"""Operations whose ranks may have different sizes: the splits say which part goes where."""

OP_TYPES = {name: name.upper().replace("ALL_", "ALL") for name in IN_PROGRAMS if name not in POINT_TO_POINT}
OP_TYPES |= {"all_gather_into_tensor": "_ALLGATHER_BASE", "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE"}
OP_TYPES |= {"all_to_all": "ALLTOALL", "all_to_all_single": "ALLTOALL_BASE"}
"""torch's names of the operations that its ProcessGroupWrapper (TORCH_DISTRIBUTED_DEBUG=DETAIL) compares."""

_NAME_ALONE = frozenset({"ALLGATHER_COALESCED", "ALLREDUCE_COALESCED", "ALLTOALL", "ALLTOALL_BASE", "BARRIER"})
"""Operations of which it compares the name, and no tensor."""

_SCALAR_NAMES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "bool": "Bool"}
_SCALAR_NAMES |= {"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte"}
_SCALAR_NAMES |= {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}
_OPTIONS = (
    "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)
_ASPECTS = (
    "\t Sequence number",
    "  Op type",
    "  Tensor Tensor shapes",
    "  Tensor Tensor dtypes",
    "  Tensor Tensor devices",
)


def first_differing_field(calls: Sequence[Call]) -> Code | None:
    """Return the first field in which matched calls of one collective (in rank order) differ; None if they agree."""
    first, origin = calls[0].signature, calls[0].origin
    signatures_agree = origins_agree = True
    for call in calls:  # one plain loop: this runs for every call of every rank
        if call.signature != first:
            signatures_agree = False
        if call.origin is not origin and call.origin != origin:
            origins_agree = False
    if not signatures_agree:
        for code, values in _compared_fields(calls):
            if any(value != values[0] for value in values):
                return code
    if first.splits is not None and len(first.splits[0]) == len(calls) and _misfitting_pairs(calls):
        rows = [_row_elements(call.signature) for call in calls]
        return Code.MISMATCH_SPLITS if all(row == rows[0] for row in rows) else Code.MISMATCH_SHAPE
    return Code.MISMATCH_ORIGIN if not origins_agree and _origins_differ(calls) else None


def compared_values(calls: Sequence[Call], code: Code) -> list[Hashable]:
    """Return each call's value of the field that the finding's `code` names."""
    if code is Code.MISMATCH_SHAPE and calls[0].operation in _BY_SPLITS:
        return [_row_elements(c.signature) for c in calls]
    if code is Code.MISMATCH_ORIGIN:
        origins = [c.origin for c in calls]
        return [(o.phase, o.wrapper, o.bucket, o.step, o.part and o.part[:3]) for o in origins]
    if code is Code.MISMATCH_SPLITS:
        return [c.signature.splits for c in calls]
    return next(list(values) for found, values in _compared_fields(calls) if found is code)


def ranks_that_differ(calls: Sequence[Call], code: Code) -> tuple[int, ...]:
    """Return the ranks whose value is not the most common one; all ranks if no value is the most common one."""
    if code is Code.MISMATCH_SPLITS:
        return _ranks_with_wrong_splits(calls)
    values = compared_values(calls, code)
    (value, count), *others = Counter(values).most_common()
    if not others or others[0][1] + _count_of_absent_members(calls) >= count:
        return tuple(sorted(call.rank for call in calls))
    return tuple(sorted(call.rank for call, own in zip(calls, values, strict=True) if own != value))


def _count_of_absent_members(calls: Sequence[Call]) -> int:
    """Return how many ranks are named as members of a group and have not come: their lists of members are unknown."""
    named = {rank for call in calls for rank in call.signature.members or ()}
    return len(named.difference(call.rank for call in calls))


def message_differing_field(send: Call, receive: Call) -> Code | None:
    """Return the field in which a message differs from its receive buffer; None if the message fits."""
    if send.signature.dtype != receive.signature.dtype:
        return Code.MISMATCH_DTYPE
    if _element_count(send.signature.shapes) != _element_count(receive.signature.shapes):
        return Code.MISMATCH_SHAPE
    return Code.MISMATCH_ORIGIN if _origins_differ((send, receive)) else None


def call_sites_differ(calls: Sequence[Call]) -> bool:
    """Return True if the user's program made the calls from different lines, which is legal but may be a mistake."""
    origin, site = calls[0].origin, calls[0].site
    return origin.phase is Phase.USER and any(c.site is not site and c.site[:2] != site[:2] for c in calls)


def are_unusual_lines_matched(calls: Sequence[Call]) -> bool:
    """Return True if the calls come from different lines, where programs usually have one line.

    In many programs the root has a line of its own, because only the root has the tensors to scatter or to gather into.
    The stages of a pipeline also have different lines.
    """
    if calls[0].origin.part is not None:
        return False
    root = calls[0].signature.root
    if root is None:
        return call_sites_differ(calls)
    return call_sites_differ([call for call in calls if call.rank != root] or calls)


def _compared_fields(calls: Sequence[Call]) -> Iterable[tuple[Code, list[Hashable]]]:
    signatures = [call.signature for call in calls]
    yield Code.MISMATCH_OPERATION, [s.operation for s in signatures]
    yield Code.MISMATCH_GROUP, [s.members for s in signatures]
    yield Code.MISMATCH_ROOT, [s.root for s in signatures]
    yield Code.MISMATCH_DTYPE, [s.dtype for s in signatures]
    yield Code.MISMATCH_SHAPE, [_shapes_to_agree(s) for s in signatures]
    yield Code.MISMATCH_REDUCTION, [s.reduction for s in signatures]


def _shapes_to_agree(signature: Signature) -> Hashable:
    """Return the shapes that must agree: all of them, except for calls with splits.

    Backends move elements in memory order and compare their numbers at most. So if [2, 3] is matched with [3, 2], the
    result is wrong without an error (ZOO.md, allreduce-numel-differs). One element is the same in every shape. A
    message may be received in another shape.
    """
    if signature.operation in _BY_SPLITS:
        return None
    return tuple([() if prod(shape) == 1 else shape for shape in signature.shapes])


def _row_elements(signature: Signature) -> tuple[int, int]:
    """Return how many elements a split of 1 means in a call: of the data sent, and of the data received."""
    if OPERATIONS[signature.operation].splits is SplitRule.TENSORS:
        return 1, 1
    sent, received = signature.shapes
    return prod(sent[1:]), prod(received[1:])


def _misfitting_pairs(calls: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Return the pairs of a sender and a receiver that disagree on the size of the data between them."""
    if _has_equal_parts(calls):
        return []
    rows = [_row_elements(call.signature) for call in calls]
    sides = [call.signature.splits or ((), ()) for call in calls]
    pairs = []
    for i, (sent, _) in enumerate(sides):
        for j, (_, expected) in enumerate(sides):
            has_part = j < len(sent) and i < len(expected)
            if not has_part or sent[j] * rows[i][0] != expected[i] * rows[j][1]:
                pairs.append((calls[i], calls[j]))
    return pairs


def _has_equal_parts(calls: Sequence[Call]) -> bool:
    """Return True if all ranks send equal parts to all ranks, so that pairs need not be compared."""
    first = calls[0].signature
    assert first.splits is not None
    sent, received = _row_elements(first)
    sizes = {*first.splits[0], *first.splits[1]}
    return sent == received and len(sizes) == 1 and all(call.signature == first for call in calls)


def _ranks_with_wrong_splits(calls: Sequence[Call]) -> tuple[int, ...]:
    """Return the rank that is in every misfitting pair, or the ranks unlike most if one of them is in every such pair;
    else all ranks of the pairs."""
    pairs = [{sender.rank, receiver.rank} for sender, receiver in _misfitting_pairs(calls)]
    involved = sorted(set().union(*pairs))
    in_all = [rank for rank in involved if all(rank in pair for pair in pairs)]
    (usual, count), *_ = Counter((call.signature.shapes, call.signature.splits) for call in calls).most_common()
    odd = {call.rank for call in calls if (call.signature.shapes, call.signature.splits) != usual}
    if len(in_all) != 1 and 2 * count > len(calls) and not any(pair.isdisjoint(odd) for pair in pairs):
        return tuple(sorted(odd))
    return tuple(in_all if len(in_all) == 1 else involved)


def _origins_differ(calls: Sequence[Call]) -> bool:
    """Return True if some call's origin does not fit the first call's; a call of `join()` is never the first."""
    first = next((call.origin for call in calls if not call.origin.shadow), calls[0].origin)
    return any(call.origin is not first and not call.origin.matches_origin(first) for call in calls)


def _element_count(shapes: tuple[Shape, ...]) -> int:
    return sum([prod(shape) for shape in shapes])


def mismatch_errors(calls: Sequence[Call], numbers: Sequence[int]) -> list[str]:
    """Return the text of torch's exception on each rank, for calls that its ProcessGroupWrapper finds to differ.

    [] if it finds no difference, as of a root or a reduction. `numbers` are the calls' numbers as torch counts them.
    torch prints garbage for a rank whose call has another count of tensors or dimensions; here it is told right.
    """
    if any(c.operation not in OP_TYPES or (c.signature.dtype or "bool") not in _SCALAR_NAMES for c in calls):
        return []
    prints = [_fingerprint(c.signature, place, numbers[place]) for place, c in enumerate(calls)]
    running = [f"Rank {c.rank} is running collective: {_text(*own)}" for c, own in zip(calls, prints, strict=True)]
    texts = []
    for own, mine in zip(prints, running, strict=True):
        other = next((place for place, each in enumerate(prints) if each != own), None)
        if other is None:
            return []
        pairs = zip(_ASPECTS, own, prints[other], strict=True)
        differing = "".join(f"{name}: {a}vs {b}" for name, a, b in pairs if a != b)
        found = f"Detected mismatch between collectives on ranks. {mine}, but {running[other]}."
        texts.append(f"{found}Collectives differ in the following aspects: {differing}")
    return texts


def _fingerprint(signature: Signature, place: int, number: int) -> tuple[str, ...]:
    """Return what torch compares of a call by the group's member at `place`, in the order of `_ASPECTS`."""
    operation = OP_TYPES[signature.operation]
    if operation in _NAME_ALONE:
        return str(number), operation, "", "", ""
    shape = signature.shapes[place if operation == "REDUCE_SCATTER" else 0]
    count = 2 if operation == "_REDUCE_SCATTER_BASE" else 1  # the output, too
    tensors = [_SCALAR_NAMES[str(signature.dtype)]] * count, [_OPTIONS] * count
    return str(number), operation, " ".join(map(str, shape)), *map(" ".join, tensors)


def _text(number: str, name: str, shape: str, dtypes: str, devices: str) -> str:
    tensors = f", TensorShape=[{shape.replace(' ', ', ')}], TensorDtypes={dtypes}, TensorDeviceTypes={devices}"
    return (
        f"CollectiveFingerPrint(SequenceNumber={number}{f', OpType={name}{tensors}' if dtypes else f'OpType={name}'})"
    )
