"""Renders HTML pages that contain their styles, scripts and data, and load nothing.

A Content-Security-Policy allows only the page's styles and scripts, and no requests. Jinja2 escapes every value.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render_page(template: str, values: dict[str, Any], *, styles: Sequence[str], scripts: Sequence[str] = ()) -> bytes:
    """Return an HTML page, from a template based on base.html.j2. `styles` and `scripts` are names of asset files."""
    style = "".join(map(_read_asset, styles))
    script = (
        '(() => {\n"use strict";\n' + "\n".join(map(_read_asset, scripts)) + "\n})();\n" if scripts else ""
    )  # one scope
    values |= {"policy": _content_policy(style, script), "style": Markup(style), "script": Markup(script)}
    text = _templates().get_template(template).render(values)
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")


def embed_json(value: object) -> Markup:
    """Return a value as JSON for a script element; no text in it can end that element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("ddpsim.reports.forms", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _read_asset(name: str) -> str:
    return files("ddpsim.reports.forms").joinpath("assets").joinpath(name).read_text("utf-8").replace("\r\n", "\n")


def _content_policy(style: str, script: str) -> str:
    rules = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {_source_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, f"script-src {_source_hash(script)}"] if script else rules)


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
