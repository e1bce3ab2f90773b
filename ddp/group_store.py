"""Messages that ranks post for each other in the store of a group, where no collective would be answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

ANSWER_SECONDS = 1.0
"""How long a message is waited for; only ever after an error."""


def post_message(group: ProcessGroup, key: str, message: str) -> None:
    """Leave a message for the other ranks."""
    store = _store(group)
    if store is not None:
        store.set(key, message)


def count_up(group: ProcessGroup, key: str) -> int:
    """How often this has been called with `key`, by anybody."""
    store = _store(group)
    return 0 if store is None else int(store.add(key, 1))


def read_message(group: ProcessGroup, key: str) -> str | None:
    """The message under `key`, or None if nobody posts one within a short time."""
    return read_messages(group, [key]).get(key)


def read_messages(group: ProcessGroup, keys: Sequence[str]) -> dict[str, str]:
    """The messages under those of the keys where somebody posts one within a short time, one for all of them."""
    store = _store(group)
    if store is None or not keys:
        return {}
    try:
        store.wait(list(keys), timedelta(seconds=ANSWER_SECONDS))
    except (RuntimeError, TimeoutError):  # which of them, depends on the kind of store
        keys = [key for key in keys if store.check([key])]
    return {key: store.get(key).decode() for key in keys}


def _store(group: ProcessGroup) -> Any:
    """The store the group was made with; torch has no public name for it."""
    find = getattr(distributed_c10d, "_get_process_group_store", None)
    return None if find is None else find(group)
