"""How much the programs of ranks bring to calls of their own, so that an average of parameters is known for one."""

from __future__ import annotations

from collections import Counter
from math import prod

from ddpsim.simulator.runtime.host import Pending


class CommunicatedElements:
    """Elements of tensors, by rank."""

    def __init__(self) -> None:
        self._elements: Counter[int] = Counter()

    def call_issued(self, pending: Pending) -> None:
        """A rank's program makes a call."""
        call = pending.call
        self._elements[call.rank] += sum([prod(shape) for shape in call.signature.shapes])

    def by(self, rank: int) -> int:
        """All that a rank's program has brought so far."""
        return self._elements[rank]
