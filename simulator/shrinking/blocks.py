"""The shapes that passes share: values without a block of them, or with one of them smaller.

Blocks come in the order of delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input,
IEEE Transactions on Software Engineering 28(2), 2002): a large part that does not matter goes in one try. Where their
algorithm doubles the granularity after each round without success, the blocks of all sizes are one sequence here, which
starts anew after a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

Value = TypeVar("Value")

_FEW = 6
"""Of so many, every two and every three are tried alone."""


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


def without_a_block(values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """Yield the values without one block of them."""
    for block in blocks(len(values)):
        yield (*values[: block.start], *values[block.stop :])


def fewer_of(values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """The values without a block of them; of few, every two and every three: none of them need be superfluous alone."""
    yield from without_a_block(values)
    for count in (2, 3) if len(values) <= _FEW else ():
        yield from combinations(values, count)


def with_one_simpler(
    values: Sequence[Value], simpler: Callable[[Value], Iterable[Value]]
) -> Iterator[tuple[Value, ...]]:
    """Yield the values with one of them simpler."""
    for index, value in enumerate(values):
        for other in simpler(value):
            yield (*values[:index], other, *values[index + 1 :])


def smaller_numbers(number: int, least: int = 1) -> list[int]:
    """Yield the least number, half of the number, and one less, as far as they are smaller."""
    return sorted({each for each in (least, number // 2, number - 1) if least <= each < number})
