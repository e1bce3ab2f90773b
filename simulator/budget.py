"""Limits of a run. When one ends a run, the verdict is unknown, never pass."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.simulator.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one simulation or exploration may use."""

    executions: int = 1000
    """Runs of an exploration; a simulation is one."""
    seconds: float = 600.0
    """Wall-clock seconds in all."""
    steps: int = 10_000_000
    """Choice points of one execution."""
    polls: int = 100_000
    """Polls (`is_completed`, `Store.check`) in a row that find nothing while nobody else can run."""
    stuck_seconds: float = 10.0
    """Wall-clock seconds that the running rank may spend asleep outside our control (a lock, a socket, native code)."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise UsageError(f"Budget({name}={getattr(self, name)!r}), expected more than 0")
