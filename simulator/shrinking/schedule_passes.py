"""Passes that make a schedule simpler: fewer switches (choices that are not the default), then fewer choices, then
smaller ones.

A changed schedule may lead to other choice points: `Guided` applies the choices modulo the number of options there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddpsim.simulator.shrinking.structure import smaller_numbers, with_one_simpler, without_a_block

Choices = tuple[int, ...]

_MOST_SINGLE = 60
"""The most indices that are tried for a single switch, and the most pairs of switches that are removed together."""

_LEAST_LARGEST = 3
"""As a single switch, every choice up to this is tried, even if no choice is so large: an earlier index may need it."""
_MOST_REGROUPED = 8
"""Only this many switches are regrouped; more are first removed one by one."""
_MOST_MERGED = 9
"""The most choices that are tried in place of two, besides their sum."""


def stripped(choices: Choices) -> Choices:
    """Remove the default choices at the end, which a schedule need not contain."""
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return choices[:end]


def truncated(choices: Choices) -> Iterator[Choices]:
    """Keep no choices, then the first half, the first three quarters, ... all but the last."""
    left = len(choices)
    while left:
        yield stripped(choices[: len(choices) - left])
        left //= 2


def zeroed(choices: Choices) -> Iterator[Choices]:
    """Replace a block of switches by the default choice."""
    for kept in without_a_block(_switches(choices)):
        yield stripped(tuple(choice if index in kept else 0 for index, choice in enumerate(choices)))


def zeroed_in_pairs(choices: Choices) -> Iterator[Choices]:
    """Replace any two switches by the default choice."""
    switches = _switches(choices)
    pairs = [(one, other) for index, one in enumerate(switches) for other in switches[:index]]
    for pair in pairs[:_MOST_SINGLE]:
        yield stripped(tuple(0 if index in pair else choice for index, choice in enumerate(choices)))


def merged(choices: Choices) -> Iterator[Choices]:
    """Replace two consecutive switches by one, at the place of the first."""
    switches = _switches(choices)
    for first, second in pairwise(switches):
        both = choices[first] + choices[second]
        for choice in (*range(1, min(both, _MOST_MERGED)), both):
            yield stripped((*choices[:first], choice, *(0,) * (second - first), *choices[second + 1 :]))


def regrouped(choices: Choices) -> Iterator[Choices]:
    """Replace two consecutive switches by one, and move the choices between them elsewhere, if switches are few.

    Two turns of a rank become one, earlier or later.
    """
    switches = _switches(choices)
    for first, second in pairwise(switches) if len(switches) <= _MOST_REGROUPED else ():
        turn = (0,) * (second - first)
        for choice in range(1, choices[first] + choices[second] + 1):
            before, behind = choices[:first], choices[second + 1 :]
            for index in (index for index in switches if index <= first):
                yield (*before[:index], *turn, *before[index:], choice, *behind)
            for index in (index - second - 1 for index in (*switches, len(choices)) if index > second):
                yield stripped((*before, choice, *behind[:index], *turn, *behind[index:]))


def single(choices: Choices) -> Iterator[Choices]:
    """Replace all switches by one, the earliest first."""
    for index in range(min(len(choices), _MOST_SINGLE)):
        for choice in range(1, max(_LEAST_LARGEST, *choices) + 1):
            yield (*(0,) * index, choice)


def shortened(choices: Choices) -> Iterator[Choices]:
    """Remove a block of choices, so that later ones come earlier."""
    yield from map(stripped, without_a_block(choices))


def smaller(choices: Choices) -> Iterator[Choices]:
    """Replace one choice by 1, by half of it, or by one less."""
    return with_one_simpler(choices, smaller_numbers)


def _switches(choices: Choices) -> list[int]:
    return [index for index, choice in enumerate(choices) if choice]


PASSES = (truncated, zeroed, zeroed_in_pairs, merged, regrouped, single, shortened, smaller)
"""The passes, in the order in which they run."""
