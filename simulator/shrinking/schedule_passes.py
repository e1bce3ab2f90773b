"""Simpler schedules: fewer switches, then shorter ones, then smaller answers.

Programs do not offer the same choices after a change as before: the answers stand for what `Guided` makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddpsim.simulator.shrinking.blocks import blocks

Answers = tuple[int, ...]

_MOST_SINGLE = 60
"""So many indices are tried for one switch that does it all, and as many pairs of switches for leaving out both."""

_LEAST_LARGEST = 3
"""As a single switch, every answer up to this is tried, though none was so large: an earlier index may need it."""
_MOST_REGROUPED = 8
"""Of more switches, most go one by one."""
_MOST_MERGED = 9
"""So many answers are tried in place of two, besides their sum, which leads as far round as both."""


def stripped(answers: Answers) -> Answers:
    """Without the defaults at the end, which need not be said."""
    end = len(answers)
    while end and answers[end - 1] == 0:
        end -= 1
    return answers[:end]


def truncated(answers: Answers) -> Iterator[Answers]:
    """None at all, then half of them, three quarters, ... all but the last."""
    left = len(answers)
    while left:
        yield stripped(answers[: len(answers) - left])
        left //= 2


def zeroed(answers: Answers) -> Iterator[Answers]:
    """With the default in place of a block of switches."""
    switches = [index for index, answer in enumerate(answers) if answer]
    for block in blocks(len(switches)):
        gone = {switches[index] for index in block}
        yield stripped(tuple(0 if index in gone else answer for index, answer in enumerate(answers)))


def zeroed_in_pairs(answers: Answers) -> Iterator[Answers]:
    """With the default in place of any two switches."""
    switches = [index for index, answer in enumerate(answers) if answer]
    pairs = [(one, other) for index, one in enumerate(switches) for other in switches[:index]]
    for pair in pairs[:_MOST_SINGLE]:
        yield stripped(tuple(0 if index in pair else answer for index, answer in enumerate(answers)))


def merged(answers: Answers) -> Iterator[Answers]:
    """One switch in place of two that follow each other: to where the second one led, over whatever detour."""
    switches = [index for index, answer in enumerate(answers) if answer]
    for first, second in pairwise(switches):
        both = answers[first] + answers[second]
        for answer in (*range(1, min(both, _MOST_MERGED)), both):
            yield stripped((*answers[:first], answer, *(0,) * (second - first), *answers[second + 1 :]))


def regrouped(answers: Answers) -> Iterator[Answers]:
    """Of few switches, one in place of two that follow each other, what ran between them being run elsewhere.

    So two turns of a rank become one, earlier or later, over what does not depend on it.
    """
    switches = [index for index, answer in enumerate(answers) if answer]
    for first, second in pairwise(switches) if len(switches) <= _MOST_REGROUPED else ():
        turn = (0,) * (second - first)
        for answer in range(1, answers[first] + answers[second] + 1):
            before, behind = answers[:first], answers[second + 1 :]
            for index in (index for index in switches if index <= first):
                yield (*before[:index], *turn, *before[index:], answer, *behind)
            for index in (index - second - 1 for index in (*switches, len(answers)) if index > second):
                yield stripped((*before, answer, *behind[:index], *turn, *behind[index:]))


def single(answers: Answers) -> Iterator[Answers]:
    """One switch in place of all, the earliest first."""
    for index in range(min(len(answers), _MOST_SINGLE)):
        for answer in range(1, max(_LEAST_LARGEST, *answers) + 1):
            yield (*(0,) * index, answer)


def shortened(answers: Answers) -> Iterator[Answers]:
    """Without a block of answers, so that those behind it come earlier."""
    for block in blocks(len(answers)):
        yield stripped((*answers[: block.start], *answers[block.stop :]))


def smaller(answers: Answers) -> Iterator[Answers]:
    """With 1 in place of one answer, or half of it, or one less."""
    for index, answer in enumerate(answers):
        for less in sorted({1, answer // 2, answer - 1}):
            if 0 < less < answer:
                yield (*answers[:index], less, *answers[index + 1 :])


PASSES = (truncated, zeroed, zeroed_in_pairs, merged, regrouped, single, shortened, smaller)
"""In the order in which they are followed."""
