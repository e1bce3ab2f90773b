"""The seam between the isolation and one kind of process state."""

from __future__ import annotations

from typing import Protocol, TypeVar

State = TypeVar("State")


class Kind(Protocol[State]):
    """One kind of state that a process owns: how to read it, how to put it in place, how it is in a fresh process.

    Because exactly one rank runs at a time, the state in place simply IS the running rank's, so whatever code reads it,
    early-bound functions included, sees the right one. Nothing is patched in order to look up whose turn it is.
    """

    def install(self) -> None:
        """Prepare the process. The host's state has been saved and is in place."""

    def initial(self, rank: int) -> State:
        """Return what `rank` starts from. Called between a save and a load: what is in place may be scratch."""

    def save(self) -> State:
        """Return what is in place. It must stay as it is while other states are in place."""

    def load(self, state: State) -> None:
        """Put a saved or initial state in place. Called right after a save."""

    def uninstall(self) -> None:
        """Undo `install`. The host's state is in place again."""
