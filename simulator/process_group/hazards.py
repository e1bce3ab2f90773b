"""Hazards: what passes here and may hang or give wrong numbers elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.calls import Call
from simulator.verdict import Finding


class Hazards:
    """Watches one execution."""

    def slot_filled(self, calls: Sequence[Call]) -> None:
        """Calls met and agree."""

    def rank_ended(self, rank: int) -> None:
        """A rank's program returned."""

    def findings(self) -> Sequence[Finding]:
        """What was found."""
        return ()
