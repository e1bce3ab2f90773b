"""PCT (probabilistic concurrency testing): ranks run by random priorities, which change at a few random points.

S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of Finding
Bugs, ASPLOS 2010. A bug has depth d if d orderings between steps are enough to cause it. One execution of n ranks and
k choices finds it with a probability of at least

    1 / (n * k ** (d - 1))

Most bugs have a small depth: 1 if one rank only has to be faster than another, 2 if it also has to be overtaken once.
A uniform random walk can need exponentially many executions for either.

Differences from the paper: only steps at which several ranks are enabled are counted, because at other steps there is
no choice. A rank whose poll failed gets the lowest priority, because otherwise it would poll forever; so the bound only
holds for programs that do not poll. The message that a receive takes is drawn uniformly, which lowers the probability
of a bug that needs a certain message.
"""

import random
from collections.abc import Sequence

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint
from ddpsim.simulator.errors import UsageError

CHOICES = 100
"""The number of choices that an execution is assumed to have, if the number is unknown."""

DEPTH = 3
"""The default depth (number of deciding orderings) of the bugs to find."""


class Pct:
    """Runs the enabled rank with the highest priority. The same seed gives the same schedule for the same program."""

    def __init__(self, seed: int, *, depth: int = DEPTH, choices: int = CHOICES) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise UsageError(f"depth is {depth!r}, expected a whole number from 1 on: give the depth of the bug")
        self._random = random.Random(seed)
        self._priorities: dict[int, float] = {}
        """The priorities by rank. Initial ones are from 0 to 1. Lowered ones are negative, and decrease with time."""
        self._lowered_priorities_at: dict[int, list[int]] = {}
        """By the number of a choice, the lowered priorities for the ranks that run at this choice."""
        for low in range(-1, -depth, -1):
            self._lowered_priorities_at.setdefault(self._draw_index(max(1, choices)), []).append(low)
        self._lowest = -depth
        self._made = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of the option with the highest priority; for the choice of a message, a random index."""
        if point.kind is not ChoiceKind.RANK:
            return self._draw_index(len(options))
        for rank in options:
            if rank not in self._priorities:
                self._priorities[rank] = self._random.random()
        if options[-1] == point.rank:  # its poll failed: then all other ranks are listed before it
            self._priorities[point.rank] = self._lowest
            self._lowest -= 1
        for low in self._lowered_priorities_at.get(self._made, ()):
            self._priorities[options[self._highest_priority_index(options)]] = low
        self._made += 1
        return self._highest_priority_index(options)

    def _highest_priority_index(self, options: Sequence[int]) -> int:
        return max(range(len(options)), key=lambda index: self._priorities[options[index]])

    def _draw_index(self, count: int) -> int:
        return int(self._random.random() * count)  # as in RandomWalk
