"""The JSON Schema of a saved report, made from its classes."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpsim.reports.document import VERSION, Document, Event
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.wording import LabelledLine


def document_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what `to_json` writes."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"A ddpsim report, version {VERSION}"}
    made = head | msgspec.json.schema(Document)
    parts = made["$defs"]
    parts["Document"]["required"].append("version")
    parts["Document"]["properties"]["version"] = {"const": VERSION}
    for of in (Event, LabelledLine, RankOrThread):  # arrays, which are written whole
        items = [
            item | {"title": name} for item, name in zip(parts[of.__name__]["prefixItems"], of._fields, strict=True)
        ]
        parts[of.__name__] |= {"prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return made
