"""The interface between the isolation and a random number generator."""

from __future__ import annotations

from typing import Protocol, TypeVar

State = TypeVar("State")


class Generator(Protocol[State]):
    """One of the process's random generators. States with equal `marks` are equal, so they need not be swapped."""

    start: State
    """The initial state of every rank, where ranks start with equal seeds."""

    def started(self, seed: int) -> State:
        """Return the initial state of a rank that has its own seed."""

    def probe(self) -> object:
        """Return the marks of the state in place, or an object that equals no marks if they are unknown."""

    def save(self) -> State:
        """Return the state in place."""

    def exchange(self, state: State) -> State:
        """Put a state in place and return the one that was there."""
