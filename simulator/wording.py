"""Pieces of text that findings and results share: a labelled line, ranks in words, lists cut short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


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


def ranks_by(values: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """The ranks that have each value, in the order in which the values come first."""
    found: dict[T, list[int]] = {}
    for rank, value in values:
        found.setdefault(value, []).append(rank)
    return found


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names with commas; of more than `most`, the first ones."""
    return ", ".join([*names[:most], "..."] if len(names) > most else names)
