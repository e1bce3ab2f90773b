"""Limits of a run. A run that reaches one has the verdict unknown, never pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.simulator.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run or an exploration."""

    executions: int = 1000
    """The largest number of runs in an exploration."""
    seconds: float = 600.0
    """The largest number of wall-clock seconds, for the whole simulation or exploration."""
    steps: int = 10_000_000
    """The largest number of choice points (places where the scheduler chooses) in one run."""
    polls: int = 100_000
    """The largest number of consecutive failed polls (`is_completed`, `Store.check`) while no other rank can run. A
    sleep after which nothing but sleeps happens counts as ten."""
    stuck_seconds: float = 10.0
    """The most wall-clock seconds that the running rank may sleep outside ddpsim's control (a lock, native code)."""

    def __post_init__(self) -> None:
        for name in Budget.__slots__:
            if not getattr(self, name) > 0:
                raise UsageError(f"Budget({name}={getattr(self, name)!r}), expected more than 0: correct it")

    def for_repetition(self, seconds: float) -> "Budget":
        """Return the limits, with at most so many seconds, of a second run that shows more about a failed one."""
        return replace(self, seconds=min(seconds, self.seconds))

    def note_progress(self, seconds: float, steps: int, calls: int, who: object, processes: Sequence[int]) -> None:
        """Take how far a run is, several times a second; a subclass may show it. `who` runs; `processes` are ids."""
