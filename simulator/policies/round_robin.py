"""Round robin: the running rank goes on until it has to wait, then the next enabled rank does."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoicePoint


class RoundRobin:
    """Always the default, so its schedule is empty: the cheapest and the most readable interleaving."""

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return 0."""
        return 0
