"""The document as JSON, and back. `schema` is its JSON Schema, published as assets/document.schema.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reports.document import VERSION, Document
from reports.errors import ReportError

LARGEST_BYTES = 1 << 30
"""A file that is larger is none that people read."""


def to_json(document: Document) -> bytes:
    """The document as UTF-8 JSON."""
    return msgspec.json.encode(document)


def from_json(data: bytes, *, name: str = "the file") -> Document:
    """The document in JSON that `to_json` wrote. Raises ReportError for anything else; `name` is what it calls it."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
    except msgspec.DecodeError as error:
        raise ReportError(_refused(name, error)) from None
    if version != VERSION:
        raise ReportError(
            f"{name} has version {version}, this ddpsim reads {VERSION}: write it again with this ddpsim, or read it "
            "with the one that wrote it"
        )
    try:
        return msgspec.json.decode(data, type=Document)
    except msgspec.DecodeError as error:
        raise ReportError(_refused(name, error)) from None


def read(path: Path) -> Document:
    """The document in a file. Raises ReportError if there is none that can be read."""
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise ReportError(
                f"{path} has {size >> 20} MiB, expected at most {LARGEST_BYTES >> 20}: record a shorter run"
            )
        return from_json(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ReportError(
            f"{path} cannot be read ({error.strerror}), expected a result.json that --report wrote: check the path"
        ) from None


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `to_json` writes."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"A ddpsim report, version {VERSION}"}
    return head | msgspec.json.schema(Document)


class _Versioned(msgspec.Struct):
    version: int


def _refused(name: str, error: msgspec.DecodeError) -> str:
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return f"{name} is no report of ddpsim ({text}), expected a result.json that --report wrote: check the path"
    return f"{name} is not whole JSON ({text}), expected a result.json that --report wrote: write it again"
