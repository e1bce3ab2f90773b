"""A reading of the wait-for graph, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.simulator.verdict import Code


@dataclass(frozen=True, slots=True)
class Reading:
    """One reason why ranks wait for good."""

    code: Code
    culprits: tuple[int, ...]
    """The missing or dead ranks, or those of the cycle, or those that wait for a store key."""
    victims: tuple[int, ...]
    """Every rank that waits for this, if only by way of others; a rank may wait for several things."""
    cycle: tuple[int, ...] = ()
    """The shortest cycle, from its lowest rank on."""
    any_suffices: bool = False
    """True if one of several culprits would be enough."""
    threads: tuple[int, ...] = ()
    """The numbers of the threads of a cycle within one rank."""
    streams: tuple[int, ...] = ()
    """The ranks of a cycle whose calls wait for one another on the rank's stream."""
