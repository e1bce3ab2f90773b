"""Pieces of text that findings and results share: a labelled line, and ranks in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def indent(label: str, text: str) -> str:
    """A labelled line under the ranks."""
    return f"  {label:<7} {text}"


def rank_list(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1` or `ranks 0-1022, 1024`."""
    ordered = sorted(ranks)
    runs = []
    for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        if len(members) > 2:
            runs.append(f"{members[0]}-{members[-1]}")
        else:
            runs.extend(str(rank) for rank in members)
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(runs)
