"""Write Chakra execution traces (mlcommons/chakra, et_def.proto) of a simulated run, for performance simulators.

A trace says which rank communicates what with which ranks, and in which order. It has no computation, because virtual
time has none. mlcommons' own package, installed by the extra `chakra`, writes the files. Only `--chakra` imports this
module.
"""

from __future__ import annotations

import importlib
import io
import re
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import OPERATIONS, Movement
from ddpsim.simulator.records.run_log import RunLog

SCHEMA_VERSION = "1.0.0"
"""The schema version that the package's own generator writes."""


def check_chakra() -> None:
    """Raise UsageError if the package is not installed."""
    _modules()


def trace_of(run_log: RunLog, rank: int) -> bytes:
    """Return the trace of a rank: the metadata, then its nodes, each with its length in front."""
    schema, encode = _modules()
    file = io.BytesIO()
    encode(file, schema.GlobalMetadata(version=SCHEMA_VERSION))
    for node in nodes_of(run_log, rank):
        encode(file, _encoded(schema, node))
    return file.getvalue()


def _modules() -> tuple[Any, Any]:
    """Return the classes of the schema, and the function that writes one of them into a file."""
    try:
        schema = importlib.import_module("chakra.schema.protobuf.et_def_pb2")
        library = importlib.import_module("chakra.src.third_party.utils.protolib")
    except ImportError as error:
        raise UsageError(
            f"--chakra needs mlcommons' package ({error}), install it: pip install 'ddpsim[chakra]'"
        ) from error
    return schema, library.encodeMessage


def _encoded(schema: Any, node: ChakraNode) -> Any:
    """Encode a node, with attribute names and types of the package's converters and, for messages, of trace readers."""
    attribute = schema.AttributeProto
    attributes = [
        attribute(name="is_cpu_op", bool_val=False),
        attribute(name="comm_size", int64_val=node.size),
        attribute(name="pg_name", string_val=node.group),
        attribute(name="pg_ranks", int64_list=schema.Int64List(values=node.members)),
    ]
    if node.collective is not None:
        attributes.append(attribute(name="comm_type", int64_val=schema.CollectiveCommType.Value(node.collective)))
    if node.root is not None:
        attributes.append(attribute(name="root", int64_val=node.root))
    if node.peer is not None:
        name = "comm_dst" if node.type is NodeType.SEND else "comm_src"
        attributes.append(attribute(name=name, int32_val=node.peer))
    if node.tag is not None:
        attributes.append(attribute(name="comm_tag", int32_val=node.tag))
    kind = schema.NodeType.Value(node.type.value)
    return schema.Node(id=node.id, name=node.name, type=kind, ctrl_deps=node.after, attr=attributes)


# --- the nodes -------------------------------------------------------------------------------------------------------


class NodeType(str, Enum):
    """The names of et_def.proto's `NodeType` that are about communication."""

    SEND = "COMM_SEND_NODE"
    RECEIVE = "COMM_RECV_NODE"
    COLLECTIVE = "COMM_COLL_NODE"


class ChakraNode(NamedTuple):
    """A call. A field without a value is None."""

    id: int
    name: str
    type: NodeType
    after: tuple[int, ...]
    """Nodes of the same rank that come first: the call before it on the same group, as on one stream."""
    size: int
    """Bytes that the rank sends, or a receive takes; 0 for a barrier."""
    group: str
    members: tuple[int, ...]
    """Global ranks."""
    collective: str | None = None
    """A name of et_def.proto's `CollectiveCommType`."""
    root: int | None = None
    """Global rank."""
    peer: int | None = None
    """Global rank."""
    tag: int | None = None


COLLECTIVES = MappingProxyType(
    {
        Movement.NOTHING: "BARRIER",
        Movement.ALL_REDUCE: "ALL_REDUCE",
        Movement.REDUCE: "REDUCE",
        Movement.BROADCAST: "BROADCAST",
        Movement.ALL_GATHER: "ALL_GATHER",
        Movement.ALL_GATHER_INTO_TENSOR: "ALL_GATHER",
        Movement.ALL_GATHER_COALESCED: "ALL_GATHER",
        Movement.GATHER: "GATHER",
        Movement.SCATTER: "SCATTER",
        Movement.REDUCE_SCATTER: "REDUCE_SCATTER",
        Movement.REDUCE_SCATTER_TENSOR: "REDUCE_SCATTER",
        Movement.ALL_TO_ALL: "ALL_TO_ALL",
        Movement.ALL_TO_ALL_SINGLE: "ALL_TO_ALL",
    }
)
"""Names of et_def.proto's `CollectiveCommType`."""


def nodes_of(run_log: RunLog, rank: int) -> tuple[ChakraNode, ...]:
    """Return the calls of a rank, numbered from 0. A receive from any source that took no message has no peer."""
    nodes: list[ChakraNode] = []
    latest: dict[str, int] = {}
    for number, (call, _, _) in enumerate(run_log.ranks[rank]):
        after = (latest[call.group],) if call.group in latest else ()
        latest[call.group] = number
        node = ChakraNode(number, str(call), NodeType.COLLECTIVE, after, _size(call), call.group, ())
        node = node._replace(members=run_log.members[call.group])
        nodes.append(_message(node, call) if call.is_point_to_point else _collective(node, call))
    return tuple(nodes)


def _collective(node: ChakraNode, call: Call) -> ChakraNode:
    return node._replace(collective=COLLECTIVES[OPERATIONS[call.operation].movement], root=call.signature.root)


def _message(node: ChakraNode, call: Call) -> ChakraNode:
    kind = NodeType.SEND if call.operation == "send" else NodeType.RECEIVE
    return node._replace(type=kind, peer=None if call.peer == ANY_SOURCE else call.peer, tag=call.tag)


def _size(call: Call) -> int:
    """Return the bytes sent: for all_to_all_single the first shape is sent, and the second received."""
    shapes, dtype = call.signature.shapes, call.signature.dtype
    if OPERATIONS[call.operation].movement is Movement.ALL_TO_ALL_SINGLE:
        shapes = shapes[:1]
    return sum(map(prod, shapes)) * (0 if dtype is None else bytes_of(dtype))


def bytes_of(dtype: str) -> int:
    """Return the bytes of one element: 4 for "float32", 1 for "bool" and "float8_e4m3fn"."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)
