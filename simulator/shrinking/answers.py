"""Simpler schedules: fewer switches, then shorter ones, then smaller answers.

Programs do not offer the same choices after a change as before: the answers stand for what `Guided` makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.shrinking.blocks import blocks

Answers = tuple[int, ...]

_MOST_SINGLE = 60
"""So many places are tried for a single switch that does it all, and as many pairs of switches for leaving out both."""


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
    switches = [place for place, answer in enumerate(answers) if answer]
    for block in blocks(len(switches)):
        gone = {switches[index] for index in block}
        yield stripped(tuple(0 if place in gone else answer for place, answer in enumerate(answers)))


def zeroed_in_pairs(answers: Answers) -> Iterator[Answers]:
    """With the default in place of any two switches."""
    switches = [place for place, answer in enumerate(answers) if answer]
    pairs = [(one, other) for index, one in enumerate(switches) for other in switches[:index]]
    for pair in pairs[:_MOST_SINGLE]:
        yield stripped(tuple(0 if place in pair else answer for place, answer in enumerate(answers)))


def single(answers: Answers) -> Iterator[Answers]:
    """One switch in place of all, the earliest first."""
    for place in range(min(len(answers), _MOST_SINGLE)):
        for answer in range(1, max(answers) + 1):
            yield (*(0,) * place, answer)


def shortened(answers: Answers) -> Iterator[Answers]:
    """Without a block of answers, so that those behind it come earlier."""
    for block in blocks(len(answers)):
        yield stripped((*answers[: block.start], *answers[block.stop :]))


def smaller(answers: Answers) -> Iterator[Answers]:
    """With 1 in place of one answer, or half of it, or one less."""
    for place, answer in enumerate(answers):
        for less in sorted({1, answer // 2, answer - 1}):
            if 0 < less < answer:
                yield (*answers[:place], less, *answers[place + 1 :])


WAYS = (truncated, zeroed, zeroed_in_pairs, single, shortened, smaller)
"""In the order in which they are followed."""
