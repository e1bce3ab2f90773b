"""Messages that ranks exchange through the store of a process group, where a collective would hang."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

ANSWER_SECONDS = 1.0
"""How long to wait for a rank's message. Messages are only read after an error."""


def post_message(group: ProcessGroup, key: str, message: str) -> None:
    """Write a message for the other ranks."""
    _store_of_group(group).set(key, message)


def count_calls(group: ProcessGroup, key: str) -> int:
    """Count one more call with this `key`; return how many calls all ranks made."""
    return int(_store_of_group(group).add(key, 1))


def read_messages(group: ProcessGroup, keys: Sequence[str]) -> dict[str, str]:
    """Return the messages that ranks write under these keys within one short time limit for all keys."""
    store = _store_of_group(group)
    try:
        store.wait(list(keys), timedelta(seconds=ANSWER_SECONDS))
    except (RuntimeError, TimeoutError):  # depending on the kind of store
        keys = [key for key in keys if store.check([key])]
    return {key: store.get(key).decode() for key in keys}


def _store_of_group(group: ProcessGroup) -> Any:
    """Return the process group's store, for which torch has no public function."""
    return distributed_c10d._get_process_group_store(group)
