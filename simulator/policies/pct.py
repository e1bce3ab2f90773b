"""PCT: ranks run by random priorities, which change at few random places.

S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of Finding
Bugs, ASPLOS 2010. A bug has depth d if d orderings between steps suffice for it to show. One execution of n ranks and
k choices finds it with a probability of at least

    1 / (n * k ** (d - 1))

Most bugs have a small depth: 1 if one rank has only to be faster than another, 2 if it has to be overtaken once
besides. A walk that draws every choice evenly can need exponentially many executions for either.

Two departures. Only steps at which several ranks are enabled are counted: at others nothing can be changed. And a rank
that polled in vain goes below all others, since else it would poll for ever; so the bound holds for programs that do
not poll. Whose message a receive takes is drawn evenly, and a bug that needs a certain one is as much rarer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.points import is_poll_in_vain

CHOICES = 100
"""How many choices an execution is taken to have if nothing is known of it."""

DEPTH = 3
"""The depth of bugs that is looked for unless told."""


class Pct:
    """Runs the enabled rank of the highest priority. The same seed gives the same schedule for the same program."""

    def __init__(self, seed: int, *, depth: int = DEPTH, choices: int = CHOICES) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise UsageError(f"depth is {depth!r}, expected a whole number from 1 on: say how deep a bug to look for")
        self._random = random.Random(seed)
        self._priorities: dict[int, float] = {}
        """At first from 0 to 1; what went below all others, the later the lower, is negative."""
        self._lows_at: dict[int, list[int]] = {}
        """Where priorities change, and to what."""
        for low in range(-1, -depth, -1):
            self._lows_at.setdefault(self._drawn(max(1, choices)), []).append(low)
        self._lowest = -depth
        self._made = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of the rank of the highest priority; that of a source drawn evenly."""
        if point.kind is not ChoiceKind.RANK:
            return self._drawn(len(options))
        for rank in options:
            if rank not in self._priorities:
                self._priorities[rank] = self._random.random()
        if is_poll_in_vain(point, options):
            self._priorities[point.rank] = self._lowest
            self._lowest -= 1
        for low in self._lows_at.get(self._made, ()):
            self._priorities[options[self._highest(options)]] = low
        self._made += 1
        return self._highest(options)

    def _highest(self, options: Sequence[int]) -> int:
        return max(range(len(options)), key=lambda index: self._priorities[options[index]])

    def _drawn(self, count: int) -> int:
        return int(self._random.random() * count)  # as in RandomWalk
