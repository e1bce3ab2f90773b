"""Makes values of any structure simpler: shorter tuples and mappings, smaller numbers, plainer words.

A frozen value is a tree of records (dataclasses, NamedTuples, msgspec Structs), tuples, mappings and leaves. One step
leaves out a block of a tuple or mapping, moves a number towards the plain one, or puts a plainer word into a field. A
table says which values of a field are plain. A step can give a value that makes no sense: the caller repairs it or
rejects it.

QuickCheck derives `shrink` from a type in the same way, and Hypothesis also changes equal choices together ("minimize
duplicated choices", in its guide "Designing Shrink Passes"). Hypothesis' own shrinker cannot be used, because it needs
the choices from which a value was drawn, and most values here come from files, records of real jobs and the zoo.

Blocks are left out in the order of delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, IEEE Transactions on Software Engineering 28(2), 2002), so that a large irrelevant part goes in one try.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, structs

Value = TypeVar("Value")

_FEW_VALUES = 6
"""Tuples of at most this many values are also tried as pairs and triples of their values."""


def index_blocks(count: int) -> Iterator[range]:
    """Yield ranges of indices below `count`: all, halves, quarters, ... single ones."""
    parts = 1
    while True:
        parts = min(parts, count)
        yield from (range(count * part // parts, count * (part + 1) // parts) for part in range(parts))
        if parts == count:
            return
        parts *= 2


def without_one_block(values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """Yield the values without one block of neighbouring values, for each block."""
    for block in index_blocks(len(values)):
        yield (*values[: block.start], *values[block.stop :])


def with_fewer_values(values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """Yield the values without one block; if the values are few, also every pair and every triple of values."""
    yield from without_one_block(values)
    for count in (2, 3) if len(values) <= _FEW_VALUES else ():
        yield from combinations(values, count)


def with_one_simpler(
    values: Sequence[Value], simpler: Callable[[Value], Iterable[Value]]
) -> Iterator[tuple[Value, ...]]:
    """Yield the values with one of them replaced by a simpler one."""
    for index, value in enumerate(values):
        for other in simpler(value):
            yield (*values[:index], other, *values[index + 1 :])


def smaller_numbers(number: int, least: int = 1) -> list[int]:
    """Return the least number, half of the number, and one less, if they are smaller than the number."""
    return sorted({each for each in (least, number // 2, number - 1) if least <= each < number})


_MOST_MOVED = 30
"""In a tuple with more elements than this, no element is moved: 30 elements can be moved in 435 ways."""

Row: TypeAlias = "tuple[object, ...] | int"
"""What is plain in a field of a record: the field's words, the plainest first, or the plain value of its numbers."""
Table: TypeAlias = "Mapping[type, Mapping[str, Row]]"
"""By type of record, the fields that may change. Fields and types that are not in the table stay the same."""


class StructureShrinker:
    """Shrinking passes over values; a table says which values are plain."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def with_fewer_elements(self, value: Value) -> Iterator[Value]:
        """Yield copies of the value without a block of one of its tuples or mappings."""
        return self._apply_everywhere(value, (), _with_fewer_elements)

    def with_plainer_leaf(self, value: Value) -> Iterator[Value]:
        """Yield copies of the value with one number or word replaced by a plainer one."""
        return self._apply_everywhere(value, (), _plainer_values)

    def with_equal_parts_changed(self, value: Value) -> Iterator[Value]:
        """Yield copies of the value with one step made in all equal parts at once, so that these parts stay equal."""
        for part, row in dict.fromkeys(self._all_parts(value, ())):
            for other in (*_plainer_values(part, row), *_with_fewer_elements(part, row)):
                yield self._with_part_replaced(value, (), (part, row), other)

    def with_element_moved_forward(self, value: Value) -> Iterator[Value]:
        """Yield copies of the value with one element of a tuple moved nearer to the tuple's beginning."""
        return self._apply_everywhere(value, (), _with_element_moved_forward)

    def distance_of_words(self, value: object) -> int:
        """Return how far the words of a value are from the plainest ones."""
        return sum(_word_distance(part, row) for part, row in self._all_parts(value, ()))

    def distance_of_numbers(self, value: object) -> int:
        """Return how far the numbers of a value are from the plain ones, plus the lengths of tuples of numbers."""
        return sum(_number_distance(part, row) for part, row in self._all_parts(value, ()))

    def _apply_everywhere(self, part: Any, row: Row, steps: Callable[[Any, Row], Iterator[Any]]) -> Iterator[Any]:
        yield from steps(part, row)
        for key, child, its_row in self._children_of(part, row):
            yield from (_with_children(part, {key: other}) for other in self._apply_everywhere(child, its_row, steps))

    def _all_parts(self, part: Any, row: Row) -> Iterator[tuple[Any, Row]]:
        yield part, row
        for _, child, its_row in self._children_of(part, row):
            yield from self._all_parts(child, its_row)

    def _with_part_replaced(self, part: Any, row: Row, old: tuple[Any, Row], new: Any) -> Any:
        if (part, row) == old:
            return new
        children = self._children_of(part, row)
        changed = {key: self._with_part_replaced(child, its, old, new) for key, child, its in children}
        return _with_children(part, changed)

    def _children_of(self, part: Any, row: Row) -> Iterator[tuple[Any, Any, Row]]:
        """Yield the children of a record, tuple or mapping: key, child, and the row of the table for the child."""
        if type(part) in self._table:
            yield from ((name, getattr(part, name), its_row) for name, its_row in self._table[type(part)].items())
        elif isinstance(part, Mapping) or type(part) is tuple:
            its_row = row if isinstance(row, int) else ()
            items = part.items() if isinstance(part, Mapping) else enumerate(part)
            yield from ((key, each, its_row) for key, each in items)


def _with_fewer_elements(part: Any, row: Row) -> Iterator[Any]:
    if isinstance(part, Mapping):
        yield from map(dict, without_one_block(tuple(part.items())))
    elif type(part) is tuple:
        # A tuple of numbers is not emptied: () can mean something else, such as a tensor without dimensions.
        yield from (other for other in without_one_block(part) if other or not isinstance(row, int))


def _plainer_values(part: Any, row: Row) -> Iterator[Any]:
    if isinstance(row, tuple):
        yield from (row[: row.index(part)] if part in row else row) if part is not None else ()
    elif type(part) is int:
        yield from _nearer_numbers(part, row)
    elif type(part) is tuple and all(type(each) is int for each in part):
        yield (row,)


def _with_element_moved_forward(part: Any, row: Row) -> Iterator[Any]:
    if type(part) is tuple and len(part) <= _MOST_MOVED:
        for place, index in combinations(range(len(part)), 2):
            yield (*part[:place], part[index], *part[place:index], *part[index + 1 :])


def _word_distance(part: Any, row: Row) -> int:
    many = len(part) if isinstance(part, Mapping) else 0
    if isinstance(row, int) or part is None:
        return many
    return many + (row.index(part) if part in row else len(row))


def _number_distance(part: Any, row: Row) -> int:
    if isinstance(row, tuple):
        return 0
    if type(part) is tuple:
        return len(part) or 2  # an empty tuple is not simpler than one number
    return abs(part - row) if type(part) is int else 0


def _nearer_numbers(number: int, plain: int) -> Iterator[int]:
    """Yield numbers nearer to the plain number: that number itself, the one half way to it, and the next one."""
    if number != plain:
        yield from dict.fromkeys((plain, (number + plain) // 2, number - 1 if number > plain else number + 1))


def _with_children(part: Any, changed: Mapping[Any, Any]) -> Any:
    """Return a copy of a record, tuple or mapping with some children replaced."""
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
