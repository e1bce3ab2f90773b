"""Chakra execution traces as files, by mlcommons' published package, which an extra installs."""

from __future__ import annotations

import importlib
import io
from typing import Any

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records.as_chakra import ChakraNode, NodeType, nodes_of
from ddpsim.simulator.records.journal import Journal

SCHEMA_VERSION = "1.0.0"
"""What the package's own generator writes."""


def check_chakra() -> None:
    """Raise UsageError if the package is not there."""
    _modules()


def trace_of(journal: Journal, rank: int) -> bytes:
    """The trace of a rank: the metadata, then its nodes, each with its length before it."""
    schema, encode = _modules()
    file = io.BytesIO()
    encode(file, schema.GlobalMetadata(version=SCHEMA_VERSION))
    for node in nodes_of(journal, rank):
        encode(file, _encoded(schema, node))
    return file.getvalue()


def _modules() -> tuple[Any, Any]:
    """The classes of the schema, and what writes one of them into a file."""
    try:
        schema = importlib.import_module("chakra.schema.protobuf.et_def_pb2")
        library = importlib.import_module("chakra.src.third_party.utils.protolib")
    except ImportError as error:
        raise UsageError(
            f"--chakra needs mlcommons' package ({error}), expected it installed: pip install 'ddpsim[chakra]'"
        ) from error
    return schema, library.encodeMessage


def _encoded(schema: Any, node: ChakraNode) -> Any:
    """Attributes are named and typed as the package's converters do, and, for messages, those who read traces."""
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
