"""Messages that ranks exchange through the store of a process group, where a collective would hang."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

ANSWER_SECONDS = 1.0
"""The time to wait for a message; messages are only read after an error."""


def post_message(group: ProcessGroup, key: str, message: str) -> None:
    """Write a message for the other ranks."""
    store = _store_of_group(group)
    if store is not None:
        store.set(key, message)


def count_calls(group: ProcessGroup, key: str) -> int:
    """Count and return the calls with this `key`, of all ranks."""
    store = _store_of_group(group)
    return 0 if store is None else int(store.add(key, 1))


def read_messages(group: ProcessGroup, keys: Sequence[str]) -> dict[str, str]:
    """Return the messages under these keys that are written within a short time, which is one limit for all."""
    store = _store_of_group(group)
    if store is None or not keys:
        return {}
    try:
        store.wait(list(keys), timedelta(seconds=ANSWER_SECONDS))
    except (RuntimeError, TimeoutError):  # depending on the kind of store
        keys = [key for key in keys if store.check([key])]
    return {key: store.get(key).decode() for key in keys}


def _store_of_group(group: ProcessGroup) -> Any:
    """Return the group's store, for which torch has no public function."""
    find = getattr(distributed_c10d, "_get_process_group_store", None)
    return None if find is None else find(group)
