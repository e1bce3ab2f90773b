"""Writes the calls of a simulated run as clogs, torchcomms' text logs, in version 1.

Unlike flight recorder dumps, clogs have reductions, roots and splits.
"""

from collections.abc import Iterable
from math import prod

from ddpsim.simulator.calls import ANY_SOURCE, Call, Shape
from ddpsim.simulator.operations import OPERATIONS as ROWS
from ddpsim.simulator.operations import ShapeCount
from ddpsim.simulator.records.rank_record import DEFAULT
from ddpsim.simulator.records.record_texts import SHORT_DTYPES
from ddpsim.simulator.records.run_log import RunLog

_NAMES = {
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "all_to_all_single": "all_to_all_v_single",
    "monitored_barrier": "barrier",
}
_SHORT = {name: short for short, name in SHORT_DTYPES.items()}


def make_clog(run_log: RunLog, rank: int) -> bytes:
    """Return the clog of one rank, as text."""
    lines = ["V|1|base_timestamp=0.000", f"new_comm|comm={DEFAULT}|rank={rank}|world_size={run_log.world_size}"]
    for group, members in run_log.members.items():
        if group != DEFAULT and rank in members:
            lines.append(f"new_comm|comm={_group_name(group)}|rank={members.index(rank)}|world_size={len(members)}")
            lines.append(f"split|parent={DEFAULT}|child={_group_name(group)}|ranks={','.join(map(str, members))}")
    numbers: dict[str, int] = {}
    for work, noted in enumerate(run_log.ranks[rank], start=1):
        signature = _signature_line(noted.call, run_log.members[noted.call.group])
        if signature not in numbers:
            numbers[signature] = len(numbers) + 1
            lines.append(f"C{numbers[signature]}|sig|{signature}")
        head, time = f"C{numbers[signature]}", f"+{noted.time:.3f}"
        lines += [f"{head}|Q|work_id={work}|{time}", f"{head}|S|{time}"]
        lines += [f"{head}|E|{time}"] if noted.is_complete else []
    return ("\n".join(lines) + "\n").encode()


def _group_name(group: str) -> str:
    return "".join("_" if letter in "|=\r\n" else letter for letter in group)


def _signature_line(call: Call, members: tuple[int, ...]) -> str:
    signature = call.signature
    parts = [_NAMES.get(call.operation, call.operation), *_element_counts(call, members)]
    if signature.dtype is not None:
        parts.append(f"dtype={_SHORT.get(signature.dtype, signature.dtype)}")
    if signature.reduction is not None:
        parts.append(f"red_op={signature.reduction.lower()}")
    if signature.root is not None:
        parts.append(f"root={members.index(signature.root) if signature.root in members else signature.root}")
    if call.peer is not None:
        parts.append(f"peer={ANY_SOURCE if call.peer == ANY_SOURCE else members.index(call.peer)}")
    return "|".join([*parts, "async_op=f", f"comm={_group_name(call.group)}"])


def _element_counts(call: Call, members: tuple[int, ...]) -> list[str]:
    """Return how many elements a call sends and receives; for lists of tensors, the elements of each tensor."""
    signature, row = call.signature, ROWS[call.operation]
    if row.shapes is ShapeCount.NONE:
        return []
    if signature.splits is not None and row.shapes is ShapeCount.IN_AND_OUT:
        return [f"in_splits={_join_numbers(signature.splits[0])}", f"out_splits={_join_numbers(signature.splits[1])}"]
    counts = [prod(shape) for shape in signature.shapes]
    if call.is_point_to_point:
        sent, received = (counts[0], 0) if call.operation == "send" else (0, counts[0])
        return [f"in_count={sent}", f"out_count={received}"]
    if row.shapes in (ShapeCount.PER_MEMBER, ShapeCount.SEVERAL):
        out = counts if call.operation != "reduce_scatter" else counts[:1]
        return [f"in_counts={_join_numbers(counts)}", f"out_counts={_join_numbers(out)}"]
    return _counts_of_one_tensor(call, signature.shapes, len(members))


def _counts_of_one_tensor(call: Call, shapes: tuple[Shape, ...], size: int) -> list[str]:
    count = prod(shapes[0])
    if call.operation == "scatter":
        return [f"in_counts={_join_numbers([count] * size)}", f"out_count={count}"]
    if call.operation in ("all_gather", "gather"):
        return [f"in_count={count}", f"out_counts={_join_numbers([count] * size)}"]
    out = count * size if ROWS[call.operation].gathers else count
    return [f"in_count={count}", f"out_count={count // size if call.operation == 'reduce_scatter_tensor' else out}"]


def _join_numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
