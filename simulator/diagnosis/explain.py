"""The text of a diagnosis: a heading, a line a rank, then cause, remedy and replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import indent, rank_list

MANY_RANKS = 8
"""More ranks than this with the same line share one."""


def heading(kind: str, code: Code, step: int) -> str:
    """The first line of a diagnosis."""
    return f"{kind}  {code}  at step {step}"


def shortened(text: str, width: int = 72) -> str:
    """A line that fits into a table."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def elided(texts: Sequence[str]) -> list[str]:
    """A list that fits into a few lines: of more than 16, the first eight and the last four, with "..." between."""
    return list(texts) if len(texts) <= 2 * MANY_RANKS else [*texts[:MANY_RANKS], "...", *texts[-MANY_RANKS // 2 :]]


class Row(NamedTuple):
    """What a finding says of one rank, or of one of its threads."""

    rank: int
    what: str
    where: str = ""
    more: str = ""
    thread: str = ""
    """Its name; "" for the one that runs the rank's program."""


def table(rows: Sequence[Row | tuple[int, str, str, str]]) -> list[str]:
    """Rows in columns; more than MANY_RANKS equal ones share a line."""
    shared: dict[Row, list[int]] = {}
    for row in (Row(*row) for row in rows):
        shared.setdefault(row._replace(rank=0), []).append(row.rank)
    lines: list[tuple[str, str, str, str]] = []
    for row, ranks in shared.items():
        labels = [rank_list(ranks)] if len(ranks) > MANY_RANKS else [f"rank {rank}" for rank in ranks]
        lines.extend((label + _of_thread(row.thread), row.what, row.where, row.more) for label in labels)
    if all(len(ranks) <= MANY_RANKS for ranks in shared.values()):
        each = sorted((Row(*row) for row in rows), key=lambda row: (row.rank, row.thread, row))
        lines = [(f"rank {row.rank}{_of_thread(row.thread)}", row.what, row.where, row.more) for row in each]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)).rstrip()
        for line in lines
    ]


def _of_thread(name: str) -> str:
    return f', thread "{name}"' if name else ""


__all__ = ["MANY_RANKS", "Row", "elided", "heading", "indent", "rank_list", "shortened", "table"]
