"""The seeds that ranks have before a program sets its own, where ranks start unlike."""

from __future__ import annotations

_FIRST = 2_137_046
"""So that ranks 0 and 1 differ at once, with each of the generators: the first number is below 0.3 on rank 0 and above
0.9 on rank 1, and of the first numbers, be they one or sixteen, never as many are above one half. A branch by chance
then parts them, and so do layers that are dropped, if all reduce alike. Ranks 2 and 3 begin on either side of it."""


def unlike_seed(rank: int) -> int:
    """What `random`, numpy and torch of a rank are seeded with: the same in each run, another one on each rank."""
    return _FIRST + rank
