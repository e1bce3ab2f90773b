"""The ways in which a simulation runs a test of torch's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """How a simulation runs its ranks."""

    isolation: str = "process"
    seed: int | None = None
    """Of a random schedule; by turns without one."""
    transport: str = "memory"


WAYS = {
    "process": Way(),
    "thread": Way(isolation="thread"),
    "random-1": Way(isolation="thread", seed=1),
    "random-2": Way(isolation="thread", seed=2),
    "random-3": Way(isolation="thread", seed=3),
    "gloo": Way(transport="gloo"),
}
