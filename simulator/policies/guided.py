"""Guided: follows given choices, adapted to the options that the program offers; never raises.

For choices that were recorded from a program that has changed since (a saved failure, a step of shrinking), or drawn
without knowing the program. `Replay` is the strict variant, which reports a divergence.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoicePoint, Start


class Guided:
    """Gives the choices in order, each modulo the number of options; after the last one the default.

    The result's schedule has the choices that were really taken.
    """

    def __init__(self, choices: Sequence[int], start: Start | None = None) -> None:
        self._choices = choices
        self.start = start
        """How the ranks start; None for the program's default."""
        self._next = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the next choice, modulo the number of options."""
        if self._next >= len(self._choices):
            return 0
        choice = self._choices[self._next]
        self._next += 1
        return choice % len(options)
