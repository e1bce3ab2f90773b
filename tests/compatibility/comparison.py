"""Compares what two runs of a program printed: the order of lines aside, and numbers as far as they are rounded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")

_RELATIVE = Decimal("1e-5")
"""Other orders of the same additions in single precision, over a few steps of training."""


class _Line(NamedTuple):
    """A printed line, its numbers apart."""

    text: str
    numbers: tuple[Decimal, ...]
    printed: str


def difference(expected: Iterable[str], found: Iterable[str]) -> str | None:
    """The first line that one run printed and the other did not; None if all are alike."""
    first, second = _sorted(expected), _sorted(found)
    for one, other in zip(first, second, strict=False):
        if one.text < other.text:
            return f"without {one.printed!r}"
        if one.text > other.text:
            return f"with {other.printed!r}"
        if not all(map(_is_close, one.numbers, other.numbers)):
            return f"{other.printed!r} for {one.printed!r}"
    if len(first) > len(second):
        return f"without {first[len(second)].printed!r}"
    if len(first) < len(second):
        return f"with {second[len(first)].printed!r}"
    return None


def _sorted(lines: Iterable[str]) -> list[_Line]:
    return sorted(map(_line, lines))


def _line(printed: str) -> _Line:
    return _Line(_NUMBER.sub("#", printed), tuple(Decimal(number) for number in _NUMBER.findall(printed)), printed)


def _is_close(expected: Decimal, found: Decimal) -> bool:
    """Whole numbers are equal; others may differ by one in the last place, or in the sixth."""
    places = expected.as_tuple().exponent
    if not isinstance(places, int) or places >= 0:
        return expected == found
    return abs(expected - found) <= max(Decimal(1).scaleb(places), _RELATIVE * abs(expected))
