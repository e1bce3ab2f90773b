"""The seeds that ranks start with, before a program sets its own, if ranks start with different seeds."""

from __future__ import annotations

_FIRST = 2_137_046
"""Chosen so that ranks 0 and 1 differ at once with each generator: the first number is below 0.3 on rank 0 and above
0.9 on rank 1. Among the first one to sixteen numbers, the two never have equally many above one half. So the ranks take
different branches at `if random() < 0.5`, and drop different layers. Ranks 2 and 3 begin on either side of one half."""


def unlike_seed(rank: int) -> int:
    """Return the seed of `random`, numpy and torch on a rank: the same in each run, different on each rank."""
    return _FIRST + rank
