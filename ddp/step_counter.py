"""The number of a wrapper's synchronizing forward, from 1: by it a diagnosis tells apart what meets on different ranks.

What counts is in Note [StepCounter] in simulator/attribution/wrapper.py. Nothing that the engine does depends on it.
"""

from __future__ import annotations


class StepCounter:
    """Counts the synchronizing forwards of one wrapper."""

    __slots__ = ("_is_uncounted", "_reduced", "aligned", "latest")

    def __init__(self) -> None:
        self.latest = 0
        """The number of the latest forward that counts."""
        self.aligned = 0
        """The step at which a join ended last, on all ranks."""
        self._is_uncounted = False
        """The latest forward counts only once a backward follows."""
        self._reduced = 0
        """The step whose gradients were reduced last."""

    def begin_forward(self, *, is_training: bool) -> None:
        """A synchronizing forward begins."""
        self.latest += is_training
        self._is_uncounted = not is_training

    def begin_backward(self) -> None:
        """Gradients come that are to be reduced."""
        self.latest += self._is_uncounted
        self._is_uncounted = False

    def end_backward(self) -> None:
        """They are reduced."""
        self._reduced = self.latest

    def align(self, step: int) -> None:
        """A join ended: all ranks go on from the step of the last to join."""
        self.latest = self.aligned = self._reduced = step
        self._is_uncounted = False

    def forget_unreduced(self) -> None:
        """A join ended by an error: forwards that came to nothing do not count, as joined ranks made none of them."""
        self.latest = self._reduced
        self._is_uncounted = False
