"""The store operations and thread primitives for which DPOR was compared with running every schedule.

Programs report what they use while they run; docs/exploring.md describes the comparison.
tests/exploration/test_compared.py checks that this list matches the programs that were compared.
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
    """Return what a program used for which there was no comparison, sorted."""
    return sorted(set(used) - _COMPARED)
