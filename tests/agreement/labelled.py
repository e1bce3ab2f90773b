"""The program of a seed: as it should be, or broken in one place of one rank, and how."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random

from ddpsim.scenarios.strategies.breaking import Kind, broken
from ddpsim.scenarios.strategies.drawing import WORLD_SIZES, drawn
from ddpsim.simulator.programs.program import Program

_BROKEN_CHANCE = 0.5
_TRIES = 100
"""So many programs without a place for a kind of break, and another kind is tried."""


@dataclass(frozen=True, slots=True)
class LabelledProgram:
    """A program, and what was done to it."""

    seed: int
    program: Program
    kind: Kind
    rank: int | None = None
    """Whose steps were changed."""


def labelled(seed: int, world_sizes: tuple[int, int] = WORLD_SIZES) -> LabelledProgram:
    """The program of a seed: half of them as they should be, the others broken, each kind as often as the others."""
    random = Random(seed)
    if random.random() >= _BROKEN_CHANCE:
        return LabelledProgram(seed, drawn(random, world_sizes), Kind.NONE)
    kinds = [kind for kind in Kind if kind is not Kind.NONE]
    for number in count():
        if number % _TRIES == 0:  # two ranks, for one, have no other peer
            kind = random.choice(kinds)
        made = broken(random, drawn(random, world_sizes), kind)
        if made is not None:
            return LabelledProgram(seed, *made)
    raise AssertionError("unreachable")
