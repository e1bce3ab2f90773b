"""Texts of records, as they may be shown: nobody knows who wrote them, and a terminal obeys what it is sent."""

from __future__ import annotations

from functools import lru_cache

_LONGEST = 300


@lru_cache(maxsize=65536)
def plain(text: str) -> str:
    """The same, if it is printable and not too long; else with other characters as "?", and cut."""
    if text.isprintable() and len(text) <= _LONGEST:
        return text
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
