"""What dpor's outcomes were compared with those of every schedule on; docs/exploring.md says how large programs were.

The kinds of things that ranks and their threads use are told as they are used. tests/exploration/test_compared.py holds
this to what the programs of the comparison are made of.
"""

from __future__ import annotations

from collections.abc import Iterable

OF_THE_STORE = frozenset(
    {
        "add",
        "append",
        "check",
        "compare_set",
        "delete_key",
        "get",
        "list_keys",
        "multi_get",
        "multi_set",
        "num_keys",
        "queue_len",
        "queue_pop",
        "queue_push",
        "set",
        "wait",
    }
)
OF_THREADS = frozenset(
    {"Barrier", "Condition", "Event", "Lock", "Queue", "RLock", "Semaphore", "SimpleQueue", "ThreadPoolExecutor"}
)
_COMPARED = OF_THE_STORE | OF_THREADS


def not_compared(used: Iterable[str]) -> list[str]:
    """Those of what a program used that no comparison had, in order."""
    return sorted(set(used) - _COMPARED)
