"""The rank in a file's name: what people and recorders call their files by."""

from __future__ import annotations

import re

_AFTER_RANK = re.compile(r"(?:^|[^a-z])(?:global)?[_.-]?rank[_.=-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_AT_END = re.compile(r"(\d{1,7})(?:[.][A-Za-z][\w]*)*$")


def rank_in(name: str) -> int | None:
    """The rank that a path says: `rank_3`, `nccl_trace_rank_3.json`, `host7-rank3.log`, or a number at its end."""
    file = name.replace("\\", "/").rsplit("/", 1)[-1]
    found = _AFTER_RANK.findall(file)
    if found:
        return int(found[-1])
    at_end = _AT_END.search(file)
    return int(at_end[1]) if at_end else None
