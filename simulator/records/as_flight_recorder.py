"""Writes the calls of a simulated run as dumps of torch's flight recorder (NCCL, version 2.10), which torch reads."""

import pickle
from collections import Counter
from typing import Any

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Shape
from ddpsim.simulator.operations import OPERATIONS as ROWS
from ddpsim.simulator.operations import RootRole, ShapeCount
from ddpsim.simulator.records.rank_record import DEFAULT
from ddpsim.simulator.records.record_texts import CPP_DTYPES
from ddpsim.simulator.records.run_log import NotedCall, RunLog

VERSION = "2.10"
_NAMES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "monitored_barrier": "barrier",
}
"""By operation: its name in NCCL's flight recorder, where that differs from torch.distributed's name."""
_CPP = {name: cpp for cpp, name in CPP_DTYPES.items()}
_SECOND = 1_000_000_000


def make_dump(run_log: RunLog, rank: int) -> bytes:
    """Return the flight recorder dump of one rank, pickled as torch does."""
    names = {group: "0" if group == DEFAULT else group for group in run_log.members}
    config = {
        names[group]: {"name": names[group], "desc": _description(group), "ranks": str(list(members))}
        for group, members in run_log.members.items()
        if rank in members
    }
    counts: Counter[tuple[str, str]] = Counter()
    entries = [
        _make_entry(number, noted, run_log.members[noted.call.group], names[noted.call.group], counts)
        for number, noted in enumerate(run_log.ranks[rank])
        if noted.call.peer != ANY_SOURCE  # NCCL has no such receive, and its sender would be unknown
    ]
    dump = {"version": VERSION, "pg_config": config, "comm_lib_version": "", "pg_status": {}, "entries": entries}
    return pickle.dumps(dump, protocol=2)


def _description(group: str) -> str:
    return "default_pg" if group == DEFAULT else "undefined"


def _make_entry(
    number: int, noted: NotedCall, members: tuple[int, ...], name: str, counts: Counter[tuple[str, str]]
) -> dict[str, Any]:
    call = noted.call
    counts[call.group, "message" if call.is_point_to_point else "collective"] += 1
    counts[call.group, "any"] += 1
    sent, received = _sent_and_received_sizes(call, members)
    dtype = [] if call.signature.dtype is None else [_CPP.get(call.signature.dtype, call.signature.dtype)]
    created = _SECOND + int(noted.time * _SECOND) + number
    done = created if noted.is_complete else None
    return {
        "record_id": number,
        "pg_id": list(dict.fromkeys(group for group, _ in counts)).index(call.group),
        "process_group": (name, _description(call.group)),
        "thread_name": call.thread,
        "thread_id": "0",
        "collective_seq_id": call.sequence + 1 if not call.is_point_to_point else counts[call.group, "collective"],
        "p2p_seq_id": counts[call.group, "message"],
        "op_id": counts[call.group, "any"],
        "profiling_name": f"nccl:{_operation_name(call, members)}",
        "time_created_ns": created,
        "input_sizes": [list(shape) for shape in sent],
        "input_dtypes": dtype * len(sent),
        "output_sizes": [list(shape) for shape in received],
        "output_dtypes": dtype * len(received),
        "state": "completed" if noted.is_complete else "started",
        "time_discovered_started_ns": created,
        "time_discovered_completed_ns": done,
        "retired": noted.is_complete,
        "timeout_ms": 600_000,
        "is_p2p": call.is_point_to_point,
        "frames": [
            {"name": site.function, "filename": site.path, "line": site.line}
            for site in (call.site, call.caller)
            if site is not None and site != NOWHERE
        ],
    }


def _operation_name(call: Call, members: tuple[int, ...]) -> str:
    if call.peer is None:
        return _NAMES.get(call.operation, call.operation)
    arrow = "->" if call.operation == "send" else "<-"
    return f"{call.operation} {members.index(call.rank)}{arrow}{members.index(call.peer)}"


def _sent_and_received_sizes(call: Call, members: tuple[int, ...]) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Return the sizes that a rank sends and receives, as NCCL records a call: all parts in one tensor."""
    shapes, size, row = call.signature.shapes, len(members), ROWS[call.operation]
    if row.shapes is ShapeCount.NONE or not shapes:
        return (), ()
    if row.shapes is ShapeCount.IN_AND_OUT:
        return shapes[:1], shapes[1:]
    parts = ((size, *shapes[0]),)
    if row.shapes is ShapeCount.PER_MEMBER:
        return parts, (parts if call.operation == "all_to_all" else shapes[:1])
    if row.root is not RootRole.NONE and call.operation in ("gather", "scatter"):
        at_root = parts if call.rank == call.signature.root else ()
        return (shapes, at_root) if call.operation == "gather" else (at_root, shapes)
    if row.gathers:
        return shapes, tuple((size, *shape) for shape in shapes)
    if row.name.startswith("reduce_scatter"):
        return shapes, tuple((shape[0] // size, *shape[1:]) for shape in shapes)
    return shapes, shapes
