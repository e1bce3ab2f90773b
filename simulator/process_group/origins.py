"""Origins: which DDP wrapper, phase, bucket and step a call belongs to."""

from __future__ import annotations

from simulator.calls import USER_ORIGIN, Origin, Signature


class OriginTracker:
    """What one rank's calls belong to."""

    def current(self, signature: Signature) -> Origin:
        """The origin of a call that is being issued."""
        return USER_ORIGIN
