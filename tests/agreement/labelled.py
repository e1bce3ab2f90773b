"""The program of a seed: as it should be, or broken in one place of one rank, and how."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random

from ddpsim.scenarios.fuzzing.strategies.generator import ProgramExtent, choose_one, draw_program
from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind, break_program
from ddpsim.simulator.programs.program import Program

WORLD_SIZES = (2, 4)
"""The smallest and the largest, unless told; 2 or more."""
_ROUNDS = (3, 9)
_TRIES = 100
"""So many programs without a place for a kind of break, and another kind is tried."""


class Seeded:
    """Choices that a seed makes."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def draw_integer(self, least: int, most: int) -> int:
        """One of the numbers between the two, each as likely as the others."""
        return self._random.randint(least, most)


@dataclass(frozen=True, slots=True)
class LabelledProgram:
    """A program, and what was done to it."""

    seed: int
    program: Program
    kind: BreakKind
    rank: int | None = None
    """Whose steps were changed."""


def labelled(seed: int, world_sizes: tuple[int, int] = WORLD_SIZES) -> LabelledProgram:
    """The program of a seed: half of them as they should be, the others broken, each kind as often as the others."""
    choices, extent = Seeded(seed), ProgramExtent(world_sizes, _ROUNDS)
    if choose_one(choices, (False, True)):
        return LabelledProgram(seed, draw_program(choices, extent), BreakKind.NONE)
    kinds = [kind for kind in BreakKind if kind is not BreakKind.NONE]
    for number in count():
        if number % _TRIES == 0:  # two ranks, for one, have no other peer
            kind = choose_one(choices, kinds)
        made = break_program(choices, draw_program(choices, extent), kind)
        if made is not None:
            return LabelledProgram(seed, *made)
    raise AssertionError("unreachable")


def healthy(seed: int, world_sizes: tuple[int, int] = WORLD_SIZES) -> Program:
    """A program of that seed in which nothing is wrong."""
    return draw_program(Seeded(seed), ProgramExtent(world_sizes, _ROUNDS))
