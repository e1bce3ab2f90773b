"""Simpler values of any structure: less in its tuples and mappings, smaller numbers, plainer words.

A frozen value is a tree of records (dataclasses, NamedTuples, msgspec's Structs), tuples, mappings and leaves. One step
leaves out a block of a tuple or mapping, moves a number towards the plain one, or puts a plainer word into a field. A
table says what is plain in which field; nothing else here knows what a value means. So a step can give a value that
makes no sense: the caller repairs it or refuses it, and tries it only if it is smaller.

Prior art: QuickCheck derives `shrink` from a type in this way, and Hypothesis changes equal choices together ("minimize
duplicated choices", in its guide "Designing Shrink Passes"), as `alike` does. Hypothesis' own shrinker is not used
here, because it needs the choices that a value was drawn from, and most of what fails here was never drawn: it comes
from files, from records of real jobs and from the zoo.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, structs

Value = TypeVar("Value")

_FEW_VALUES = 6
"""With at most this many values, each pair and each triple of them is tried alone."""


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
    for count in (2, 3) if len(values) <= _FEW_VALUES else ():
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


_MOST_MOVED = 30
"""The elements of a longer tuple are not moved: 30 elements can be moved in 435 ways."""

Row: TypeAlias = "tuple[object, ...] | int"
"""Of a field: its words, the plainest first, or the number that is plain for all numbers in it."""
Table: TypeAlias = "Mapping[type, Mapping[str, Row]]"
"""The fields of records that may change. Other fields, and records of other types, stay."""


class Structure:
    """Shrinking passes over values; a table says which values are plain."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def fewer(self, value: Value) -> Iterator[Value]:
        """Remove a block of one of the value's tuples or mappings."""
        return self._anywhere(value, (), _fewer)

    def plainer(self, value: Value) -> Iterator[Value]:
        """Make one number or word plainer."""
        return self._anywhere(value, (), _plainer)

    def alike(self, value: Value) -> Iterator[Value]:
        """With one step in all equal parts of the value at once, so that what agrees still does."""
        for part, row in dict.fromkeys(self._parts(value, ())):
            for other in (*_plainer(part, row), *_fewer(part, row)):
                yield self._substituted(value, (), (part, row), other)

    def earlier(self, value: Value) -> Iterator[Value]:
        """Move one element of a tuple nearer to its beginning."""
        return self._anywhere(value, (), _earlier)

    def words(self, value: object) -> int:
        """How far its words are from the plainest."""
        return self._sum(value, (), _word)

    def numbers(self, value: object) -> int:
        """How far its numbers are from the plain ones, and how many there are."""
        return self._sum(value, (), _number)

    def _sum(self, part: Any, row: Row, weight: Callable[[Any, Row], int]) -> int:
        children = self._children(part, row)
        return weight(part, row) + sum(self._sum(child, its_row, weight) for _, child, its_row in children)

    def _anywhere(self, part: Any, row: Row, steps: Callable[[Any, Row], Iterator[Any]]) -> Iterator[Any]:
        yield from steps(part, row)
        for key, child, its_row in self._children(part, row):
            yield from (_with(part, {key: other}) for other in self._anywhere(child, its_row, steps))

    def _parts(self, part: Any, row: Row) -> Iterator[tuple[Any, Row]]:
        yield part, row
        for _, child, its_row in self._children(part, row):
            yield from self._parts(child, its_row)

    def _substituted(self, part: Any, row: Row, old: tuple[Any, Row], new: Any) -> Any:
        if (part, row) == old:
            return new
        children = self._children(part, row)
        return _with(part, {key: self._substituted(child, its, old, new) for key, child, its in children})

    def _children(self, part: Any, row: Row) -> Iterator[tuple[Any, Any, Row]]:
        """What a part is made of, each with its key and its row."""
        if type(part) in self._table:
            yield from ((name, getattr(part, name), its_row) for name, its_row in self._table[type(part)].items())
        elif isinstance(part, Mapping) or type(part) is tuple:
            its_row = row if isinstance(row, int) else ()
            items = part.items() if isinstance(part, Mapping) else enumerate(part)
            yield from ((key, each, its_row) for key, each in items)


def _fewer(part: Any, row: Row) -> Iterator[Any]:
    if isinstance(part, Mapping):
        yield from map(dict, without_a_block(tuple(part.items())))
    elif type(part) is tuple:
        # One number stands for several: none at all is another kind of thing, such as a tensor without dimensions.
        yield from (other for other in without_a_block(part) if other or not isinstance(row, int))


def _plainer(part: Any, row: Row) -> Iterator[Any]:
    if isinstance(row, tuple):
        yield from (row[: row.index(part)] if part in row else row) if part is not None else ()
    elif type(part) is int:
        yield from _nearer(part, row)
    elif type(part) is tuple and all(type(each) is int for each in part):
        yield (row,)


def _earlier(part: Any, row: Row) -> Iterator[Any]:
    if type(part) is tuple and len(part) <= _MOST_MOVED:
        for place, index in combinations(range(len(part)), 2):
            yield (*part[:place], part[index], *part[place:index], *part[index + 1 :])


def _word(part: Any, row: Row) -> int:
    many = len(part) if isinstance(part, Mapping) else 0
    if isinstance(row, int) or part is None:
        return many
    return many + (row.index(part) if part in row else len(row))


def _number(part: Any, row: Row) -> int:
    if isinstance(row, tuple):
        return 0
    if type(part) is tuple:
        return len(part) or 2  # none at all is no simpler than one
    return abs(part - row) if type(part) is int else 0


def _nearer(number: int, plain: int) -> Iterator[int]:
    """The plain number, the one half way to it, and the next one towards it."""
    if number != plain:
        yield from dict.fromkeys((plain, (number + plain) // 2, number - 1 if number > plain else number + 1))


def _with(part: Any, changed: Mapping[Any, Any]) -> Any:
    """A part of the tree with other children."""
    if not changed:
        return part
    if type(part) is tuple:
        return tuple(changed.get(index, each) for index, each in enumerate(part))
    if isinstance(part, Mapping):
        return {**part, **changed}
    if isinstance(part, Struct):
        return structs.replace(part, **changed)
    if isinstance(part, tuple):
        return part._replace(**changed)  # type: ignore[attr-defined]
    return dataclasses.replace(part, **changed)
