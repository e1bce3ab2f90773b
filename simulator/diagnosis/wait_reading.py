"""One deadlock found in the wait-for graph, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.simulator.verdict import Code


@dataclass(frozen=True, slots=True)
class WaitReading:
    """One reason why ranks wait forever: a missing or dead rank, a cycle, or a store key."""

    code: Code
    culprits: tuple[int, ...]
    """The missing or dead ranks, the ranks of the cycle, or the ranks that wait for a store key."""
    victims: tuple[int, ...]
    """Every rank that waits for this, directly or through other ranks."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle, starting at its lowest rank."""
    any_suffices: bool = False
    """True if one of the culprits would be enough (a receive from any source)."""
    threads: tuple[int, ...] = ()
    """The threads of a cycle within one rank, by number."""
    streams: tuple[int, ...] = ()
    """The ranks of a cycle in which calls wait for one another on a rank's stream."""
