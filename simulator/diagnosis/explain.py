"""The text of a diagnosis: a heading, a line a rank, then cause, remedy and replay."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.verdict import Code
from simulator.wording import indent, rank_list

MANY_RANKS = 8
"""More ranks than this with the same line share one."""


def heading(kind: str, code: Code, step: int) -> str:
    """The first line of a diagnosis."""
    return f"{kind}  {code}  at step {step}"


def shortened(text: str, width: int = 72) -> str:
    """A line that fits into a table."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def table(rows: Sequence[tuple[int, str, str, str]]) -> list[str]:
    """Lines of (rank, what, where, more), in columns; more than MANY_RANKS equal ones share a line."""
    shared: dict[tuple[str, str, str], list[int]] = {}
    for rank, *rest in rows:
        shared.setdefault((rest[0], rest[1], rest[2]), []).append(rank)
    lines: list[tuple[str, str, str, str]] = []
    for (what, where, more), ranks in shared.items():
        labels = [rank_list(ranks)] if len(ranks) > MANY_RANKS else [f"rank {rank}" for rank in ranks]
        lines.extend((label, what, where, more) for label in labels)
    if all(len(ranks) <= MANY_RANKS for ranks in shared.values()):
        lines = [(f"rank {rank}", *rest) for rank, *rest in sorted(rows)]  # type: ignore[misc]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)).rstrip()
        for line in lines
    ]


__all__ = ["MANY_RANKS", "heading", "indent", "rank_list", "shortened", "table"]
