"""Renders the answer of `ddpsim compare` as a page: what differs first, a picture over tensors and steps, a table."""

import math
from collections.abc import Mapping
from typing import Any

from ddpsim.reports.forms.page import render_page

_COLOURS = {"the same": "pass", "not the same": "fail", "not known": "unknown"}


def comparison_to_html(values: Mapping[str, Any]) -> bytes:
    """Render the values of `Comparison.as_json` in UTF-8.

    In the picture each tensor is a line and each step a column; a cell is as dark as the difference is large, by
    powers of ten of what rounding explains.
    """
    steps = values["history"]
    depth = {key: line for line, key in enumerate(dict.fromkeys(_key(row) for step in steps for row in step))}
    cells = [
        (number, depth[_key(row)], row, min(1.0, max(0.0, _orders(row) / 6)))
        for number, step in enumerate(steps)
        for row in step
    ]
    said = [(label, values[label]) for label in ("cause", "calls", "do", "then") if label in values]
    table = steps[-1] if steps else []
    first = values["first"] and _key(values["first"])
    page: dict[str, Any] = {
        "title": f"{values['program']} - ddpsim compare",
        "values": values,
        "colour": _COLOURS[values["answer"]],
    }
    page |= {"cells": cells, "depth": depth, "steps": len(steps), "said": said, "table": table, "first": first}
    return render_page("comparison.html.j2", page | {"key": _key}, styles=("base.css",))


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['kind']} {row['name']}"


def _orders(row: Mapping[str, Any]) -> float:
    """Return by how many powers of ten a difference is larger than rounding explains."""
    difference, tolerance = row["difference"], row["tolerance"] or 1e-12
    return 6.0 if math.isnan(difference) else math.log10(max(difference, 1e-300) / tolerance)
