"""Counts the elements that each rank's program passes to its own calls, so that parameter averaging is recognised."""

from __future__ import annotations

from collections import Counter
from math import prod

from ddpsim.simulator.runtime.host import Pending


class CommunicatedElements:
    """Counts of tensor elements, by rank."""

    def __init__(self) -> None:
        self._elements: Counter[int] = Counter()

    def call_issued(self, pending: Pending) -> None:
        """A rank's program makes a call."""
        call = pending.call
        self._elements[call.rank] += sum([prod(shape) for shape in call.signature.shapes])

    def by(self, rank: int) -> int:
        """Return the number of elements that a rank's program has passed to its calls so far."""
        return self._elements[rank]
