"""Words that ranks leave for each other in the store of a group, where no collective would be answered."""

from __future__ import annotations

from collections.abc import Sequence
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


def count_up(group: ProcessGroup, key: str) -> int:
    """How often this has been called with `key`, by anybody."""
    store = _store(group)
    return 0 if store is None else int(store.add(key, 1))


def read_word(group: ProcessGroup, key: str) -> str | None:
    """The word under `key`, or None if nobody left one within a short time."""
    return read_words(group, [key]).get(key)


def read_words(group: ProcessGroup, keys: Sequence[str]) -> dict[str, str]:
    """The words under those of the keys where somebody left one within a short time, one for all of them."""
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
