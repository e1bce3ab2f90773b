"""Plain values as UTF-8 JSON."""

from __future__ import annotations

import json

import msgspec


def encoded(value: object) -> bytes:
    """The value as UTF-8 JSON; half a character, as Python puts it into a file name that is no text, becomes "?"."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode(errors="replace")
