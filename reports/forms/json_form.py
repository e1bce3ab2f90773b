"""Writes a document as JSON and reads it. `schema` is its JSON Schema, published as assets/document.schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ddpsim.reports.document import VERSION, Document, Event, ReportError
from ddpsim.reports.forms.references import first_broken
from ddpsim.simulator.choices import Who
from ddpsim.simulator.wording import Line

Decoded = TypeVar("Decoded")

LARGEST_BYTES = 1 << 28
"""The largest file that is read; a larger one has millions of events, too many for a reader."""


def to_json(document: Document) -> bytes:
    """Write the document as UTF-8 JSON."""
    return encoded(document)


def encoded(value: object) -> bytes:
    """Encode the value as UTF-8 JSON; a lone surrogate, as in a file name that is not UTF-8, becomes "?"."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode(errors="replace")


def from_json(data: bytes, *, name: str = "the file") -> Document:
    """Read JSON that `to_json` wrote. Raises ReportError for anything else, with `name` in its message."""
    version = _decoded(data, _Versioned, name).version
    if version != VERSION:
        raise ReportError(
            f"{name} has version {version}, this ddpsim reads {VERSION}: write it again with this ddpsim, or read it "
            "with the one that wrote it"
        )
    document = _decoded(data, Document, name)
    if problem := first_broken(document):
        raise _no_report(name, problem)
    return document


def read(path: Path) -> Document:
    """Read the document in a file. Raises ReportError if the file cannot be read or has no document."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
        raise ReportError(f"{path} is not a regular file, expected a result.json that --report wrote: give that file")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ReportError(
            f"{path} cannot be read ({error.strerror}), expected a result.json that --report wrote: check the path"
        ) from None
    if len(data) > LARGEST_BYTES:
        raise ReportError(
            f"{path} has more than {LARGEST_BYTES >> 20} MiB, the limit of a report: report a shorter run"
        )
    return from_json(data, name=str(path))


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what `to_json` writes."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"A ddpsim report, version {VERSION}"}
    made = head | msgspec.json.schema(Document)
    parts = made["$defs"]
    parts["Document"]["required"].append("version")
    parts["Document"]["properties"]["version"] = {"const": VERSION}
    for of in (Event, Line, Who):  # arrays, which are written whole
        items = [
            item | {"title": name} for item, name in zip(parts[of.__name__]["prefixItems"], of._fields, strict=True)
        ]
        parts[of.__name__] |= {"prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return made


def schema_text() -> str:
    """Return the text of the published schema."""
    return msgspec.json.format(json.dumps(schema()), indent=2) + "\n"


class _Versioned(msgspec.Struct):
    version: int


def _decoded(data: bytes, of: type[Decoded], name: str) -> Decoded:
    try:
        return msgspec.json.decode(data, type=of)
    except msgspec.ValidationError as error:
        raise _no_report(name, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{name} is not valid JSON ({error}), expected a result.json that --report wrote: write it again"
        ) from None
    except RecursionError:
        raise _no_report(name, "it is nested too deeply") from None


def _no_report(name: str, why: str) -> ReportError:
    return ReportError(
        f"{name} is not a ddpsim report ({why}), expected a result.json that --report wrote: check the path"
    )
