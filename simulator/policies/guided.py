"""Guided: takes the choices it is given as far as they fit, and never objects.

For choices that were recorded by a program that has changed since (a saved failure, a step of shrinking) or that were
drawn without a program in sight. `Replay` is the one that insists.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoicePoint, Start


class Guided:
    """Gives the choices in order, each modulo the number of options; after the last one the default.

    What was really taken stands in the schedule of the result.
    """

    def __init__(self, choices: Sequence[int], start: Start | None = None) -> None:
        self._choices = choices
        self.start = start
        """How the ranks start; None for the way that goes with the program."""
        self._next = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the next choice, made to fit."""
        if self._next >= len(self._choices):
            return 0
        choice = self._choices[self._next]
        self._next += 1
        return choice % len(options)
