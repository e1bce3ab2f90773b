"""Blocks to leave out: the halves of a sequence, then its quarters, and so on down to each single one.

This is the order of delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE
Transactions on Software Engineering 28(2), 2002): a large part that does not matter goes in one try. Where their
algorithm doubles the granularity after each round without success, the blocks of all sizes are one sequence here, which
starts anew after a success.
"""

from __future__ import annotations

from collections.abc import Iterator


def blocks(count: int) -> Iterator[range]:
    """Ranges of indices below `count`: all, halves, quarters, ... single ones."""
    parts = 1
    while parts < count:
        yield from _parted(count, parts)
        parts *= 2
    yield from _parted(count, count)


def _parted(count: int, parts: int) -> Iterator[range]:
    for part in range(parts):
        yield range(count * part // parts, count * (part + 1) // parts)
