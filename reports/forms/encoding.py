"""Encodes plain values as UTF-8 JSON."""

from __future__ import annotations

import json

import msgspec


def encoded(value: object) -> bytes:
    """Encode the value as UTF-8 JSON; a lone surrogate, as in a file name that is not UTF-8, becomes "?"."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode(errors="replace")
