"""Simpler schedules: fewer switches, then shorter ones, then smaller choices.

A changed schedule may lead to other choice points: `Guided` applies the choices modulo the options there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddpsim.simulator.shrinking.structure import smaller_numbers, with_one_simpler, without_a_block

Choices = tuple[int, ...]

_MOST_SINGLE = 60
"""So many indices are tried for one switch that does it all, and as many pairs of switches for leaving out both."""

_LEAST_LARGEST = 3
"""As a single switch, every choice up to this is tried, though none was so large: an earlier index may need it."""
_MOST_REGROUPED = 8
"""Of more switches, most go one by one."""
_MOST_MERGED = 9
"""So many choices are tried in place of two, besides their sum, which leads as far round as both."""


def stripped(choices: Choices) -> Choices:
    """Without the defaults at the end, which need not be said."""
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return choices[:end]


def truncated(choices: Choices) -> Iterator[Choices]:
    """None at all, then half of them, three quarters, ... all but the last."""
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
    """One switch in place of two that follow each other: to where the second one led, over whatever detour."""
    switches = _switches(choices)
    for first, second in pairwise(switches):
        both = choices[first] + choices[second]
        for choice in (*range(1, min(both, _MOST_MERGED)), both):
            yield stripped((*choices[:first], choice, *(0,) * (second - first), *choices[second + 1 :]))


def regrouped(choices: Choices) -> Iterator[Choices]:
    """Of few switches, one in place of two that follow each other, what ran between them being run elsewhere.

    So two turns of a rank become one, earlier or later, over what does not depend on it.
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
"""In the order in which they are followed."""
