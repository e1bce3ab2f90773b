"""The seeds that ranks have before a program sets its own, where ranks start unlike."""

from __future__ import annotations

_FIRST = 2_860_889
"""So that the first numbers of neighbours differ much: of each of the generators rank 0 gets one above 0.85, rank 1 one
below 0.15, rank 2 one above 0.75 and rank 3 one below 0.45. A branch taken with some chance then parts them at once."""


def unlike_seed(rank: int) -> int:
    """What `random`, numpy and torch of a rank are seeded with: the same in each run, another one on each rank."""
    return _FIRST + rank
