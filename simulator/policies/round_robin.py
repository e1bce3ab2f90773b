"""Round robin: the running rank continues until it has to wait, then the next enabled rank runs."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoicePoint


class RoundRobin:
    """Always takes the default, so its schedule is empty: the cheapest and most readable interleaving."""

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return 0."""
        return 0
