"""What the simulator asks of a transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.runtime.host import Pending


class Transport(Protocol):
    """Moves the data of calls that have met and agree, all ranks of a call at once."""

    def move(self, signature: Signature, pendings: Sequence[Pending], members: Sequence[int]) -> Exception | None:
        """Move the data of a call; return what stood against it, which its ranks then get where they wait.

        `members` are the global ranks of the group, and `pendings` what each of them brought, in this order; for a
        message they are the sender's and the receiver's.
        """

    def close(self) -> None:
        """Let go of everything; called once, when the run is over."""
