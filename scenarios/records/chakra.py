"""Write Chakra execution traces (mlcommons/chakra, et_def.proto) of a simulated run, for performance simulators.

A trace says which rank communicates what with which ranks, and in which order. mlcommons' own package, installed by the
extra `chakra`, writes the files. Only `--chakra` imports this module.
"""

import importlib
import io
import re
from math import prod
from typing import Any, NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import OPERATIONS, OperationKind, ShapeCount
from ddpsim.simulator.records.run_log import RunLog

SCHEMA_VERSION = "1.0.0"
"""The schema version of Chakra that the package's own generator writes."""
SEND, RECEIVE, COLLECTIVE = "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"
"""Names of et_def.proto's `NodeType`."""


def check_chakra_is_installed() -> None:
    """Raise UsageError if the package is not installed."""
    _import_chakra()


def chakra_trace_of(run_log: RunLog, rank: int) -> bytes:
    """Return the Chakra trace of a rank as bytes: the metadata, then its nodes, each with its length in front."""
    schema, encode = _import_chakra()
    file = io.BytesIO()
    encode(file, schema.GlobalMetadata(version=SCHEMA_VERSION))
    for node in chakra_nodes_of(run_log, rank):
        encode(file, _encode_node(schema, node))
    return file.getvalue()


def _import_chakra() -> tuple[Any, Any]:
    """Return the classes of the Chakra schema, and the function that writes an object of these classes into a file."""
    try:
        schema = importlib.import_module("chakra.schema.protobuf.et_def_pb2")
        library = importlib.import_module("chakra.src.third_party.utils.protolib")
    except ImportError as error:
        raise UsageError(
            f"--chakra needs mlcommons' package ({error}), install it: pip install 'ddpsim[chakra]'"
        ) from error
    return schema, library.encodeMessage


def _encode_node(schema: Any, node: "ChakraNode") -> Any:
    """Return a node as an object of the schema; attributes are named as by the package's converters and readers."""
    collective = None if node.collective is None else schema.CollectiveCommType.Value(node.collective)
    values: dict[str, dict[str, Any]] = {
        "is_cpu_op": {"bool_val": False},
        "comm_size": {"int64_val": node.size},
        "pg_name": {"string_val": node.group},
        "pg_ranks": {"int64_list": schema.Int64List(values=node.members)},
        "comm_type": {"int64_val": collective},
        "root": {"int64_val": node.root},
        "comm_dst" if node.type == SEND else "comm_src": {"int32_val": node.peer},
        "comm_tag": {"int32_val": node.tag},
    }
    present = {name: each for name, each in values.items() if None not in each.values()}
    attributes = [schema.AttributeProto(name=name, **each) for name, each in present.items()]
    kind = schema.NodeType.Value(node.type)
    return schema.Node(id=node.id, name=node.name, type=kind, ctrl_deps=node.after, attr=attributes)


class ChakraNode(NamedTuple):
    """A call of a rank, as a node of the trace. A field without a value is None."""

    id: int
    name: str
    type: str
    after: tuple[int, ...]
    """Nodes of the same rank that must finish first: the previous call on the same group, as on one stream."""
    size: int
    """The bytes that the rank sends, or that a receive takes; 0 for a barrier."""
    group: str
    members: tuple[int, ...]
    """The global ranks of the group."""
    collective: str | None = None
    """A name of et_def.proto's `CollectiveCommType`."""
    root: int | None = None
    """The global rank of the root."""
    peer: int | None = None
    """The global rank that a message goes to or comes from."""
    tag: int | None = None


COLLECTIVES = {
    row.name: re.sub("(_INTO|_TENSOR|_COALESCED|_SINGLE|MONITORED_)", "", row.name.upper())
    for row in OPERATIONS.values()
    if row.kind is OperationKind.COLLECTIVE
}
"""Names of et_def.proto's `CollectiveCommType`."""


def chakra_nodes_of(run_log: RunLog, rank: int) -> tuple[ChakraNode, ...]:
    """Return the calls of a rank as nodes, numbered from 0. A receive from any source without a message has no peer."""
    nodes: list[ChakraNode] = []
    latest: dict[str, int] = {}
    for number, (call, _, _) in enumerate(run_log.ranks[rank]):
        after = (latest[call.group],) if call.group in latest else ()
        latest[call.group] = number
        members = run_log.members[call.group]
        node = ChakraNode(number, str(call), COLLECTIVE, after, _bytes_sent(call), call.group, members)
        if call.is_point_to_point:
            peer = None if call.peer == ANY_SOURCE else call.peer
            node = node._replace(type=SEND if call.operation == "send" else RECEIVE, peer=peer, tag=call.tag)
        else:
            node = node._replace(collective=COLLECTIVES[call.operation], root=call.signature.root)
        nodes.append(node)
    return tuple(nodes)


def _bytes_sent(call: Call) -> int:
    """Return the bytes that a call sends: of all_to_all_single's two shapes, those of the first."""
    shapes, dtype = call.signature.shapes, call.signature.dtype
    if OPERATIONS[call.operation].shapes is ShapeCount.IN_AND_OUT:
        shapes = shapes[:1]
    return sum(map(prod, shapes)) * (0 if dtype is None else bytes_of_element(dtype))


def bytes_of_element(dtype: str) -> int:
    """Return the bytes of one element of a dtype: 4 for "float32", 1 for "bool" and "float8_e4m3fn"."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)
