"""Random walk: every choice is drawn uniformly, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ddpsim.simulator.choices import ChoicePoint


class RandomWalk:
    """Draws each choice uniformly from the options. The same seed gives the same schedule for the same program."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return a uniformly drawn index."""
        # int(random() * n), not randrange: the same bits on every Python version, and a third of the time.
        return int(self._random.random() * len(options))
