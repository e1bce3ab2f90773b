"""Words that ranks leave for each other in the store of a group, where no collective would be answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

ANSWER_SECONDS = 1.0
"""How long a word is waited for; only ever after an error."""


def leave_word(group: ProcessGroup, key: str, word: str) -> None:
    """Leave a word for the others."""
    store = _store(group)
    if store is not None:
        store.set(key, word)


def read_word(group: ProcessGroup, key: str) -> str | None:
    """The word under `key`, or None if nobody left one within a short time."""
    store = _store(group)
    if store is None:
        return None
    try:
        store.wait([key], timedelta(seconds=ANSWER_SECONDS))
    except (RuntimeError, TimeoutError):  # which of them, depends on the kind of store
        return None
    word: bytes = store.get(key)
    return word.decode()


def _store(group: ProcessGroup) -> Any:
    """The store the group was made with; torch has no public name for it."""
    find = getattr(distributed_c10d, "_get_process_group_store", None)
    return None if find is None else find(group)
