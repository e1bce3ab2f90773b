"""The seam between the isolation and a random number generator."""

from __future__ import annotations

from typing import Protocol, TypeVar

State = TypeVar("State")


class Generator(Protocol[State]):
    """One of the process's generators. Its states have `marks`, by which a context switch sees what it need not do."""

    start: State
    """What every rank starts from, where ranks start alike."""

    def started(self, seed: int) -> State:
        """Return what a rank starts from that has a seed of its own."""

    def probe(self) -> object:
        """Return the marks of the state in place, or what equals no marks. A state that has them is in place."""

    def save(self) -> State:
        """Return the state in place."""

    def exchange(self, state: State) -> State:
        """Put a state in place and return the one that was there."""
