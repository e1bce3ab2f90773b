"""Text helpers for findings and results: labelled lines, lists of ranks, shortened lists."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class LabelledLine(NamedTuple):
    """A line of a diagnosis that begins with a label."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"  {self.label:<7} {self.text}"


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks as text in a sentence: `rank 2`, `ranks 0, 1` or `ranks 0-1022, 1024`."""
    ordered = sorted(ranks)
    return ("rank " if len(ordered) == 1 else "ranks ") + ranges_text(ordered)


def ranges_text(ranks: Iterable[int]) -> str:
    """Return numbers as text, with ranges: `2`, `0, 1` or `0-1022, 1024`."""
    rows = consecutive_ranges(sorted(ranks))
    return ", ".join(f"{a}-{b}" if b > a + 1 else f"{a}, {b}" if b > a else str(a) for a, b in rows)


def consecutive_ranges(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last rank of each block of consecutive ranks. `ranks` is in ascending order."""
    rows = (list(row) for _, row in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]))
    return [(row[0][1], row[-1][1]) for row in rows]


def ranks_by_value(values: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """Return the ranks that have each value, in the order in which the values first occur."""
    return values_by_key((value, rank) for rank, value in values)


def values_by_key(pairs: Iterable[tuple[T, V]]) -> dict[T, list[V]]:
    """Return the values that come with each key, in the order in which the keys first occur."""
    found: dict[T, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas. If there are more than `most`, return only the first of them."""
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


def count_with_noun(count: int, one: str, several: str = "") -> str:
    """Return a number with its noun, singular or plural: `1 record` or `2 records`."""
    return f"{count} {one if count == 1 else several or one + 's'}"
