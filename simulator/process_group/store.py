"""A key-value store in memory whose waits are choice points."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import Store

from simulator.events import EventKind
from simulator.runtime.call_sites import site_here
from simulator.runtime.execution import Execution
from simulator.waits import StoreWait


class StoreContents:
    """What the ranks of one execution have stored, and who waits for which key."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.waiting: dict[int, tuple[str, ...]] = {}


class MemoryStore(Store):
    """One rank's handle of the store that all ranks share. Every operation is a choice point."""

    def __init__(self, execution: Execution, contents: StoreContents) -> None:
        super().__init__()
        self._execution = execution
        self._contents = contents
        self._timeout_seconds: float | None = None

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        self._begin("set", key)
        self._put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        self._begin("get", key)
        self._wait([key], None)
        return self._contents.values[key]

    def add(self, key: str, value: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        self._begin("add", key)
        total = int(self._contents.values.get(key, b"0")) + value
        self._put(key, str(total).encode())
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the value is `expected`, or if there is none and `expected` is empty. Returns what is stored."""
        self._begin("compare_set", key)
        found = self._contents.values.get(key)
        if found == _bytes(expected) or (found is None and not expected):
            self._put(key, _bytes(desired))
            return _bytes(desired)
        return _bytes(expected) if found is None else found

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value, which starts empty."""
        self._begin("append", key)
        self._put(key, self._contents.values.get(key, b"") + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there. A poll in vain lets the other ranks run."""
        self._begin("check", ", ".join(keys))
        if self._has(keys):
            return True
        self._execution.poll()
        return self._has(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there; raise RuntimeError if `timeout` passes first in virtual time."""
        self._begin("wait", ", ".join(keys))
        self._wait(list(keys), timeout)

    def delete_key(self, key: str) -> bool:
        """Forget a key; True if it was there."""
        self._begin("delete_key", key)
        return self._contents.values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys there are."""
        self._begin("num_keys", "")
        return len(self._contents.values)

    def list_keys(self) -> list[str]:
        """The keys, in the order they were first set."""
        self._begin("list_keys", "")
        return list(self._contents.values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, once all are there."""
        self._begin("multi_get", ", ".join(keys))
        self._wait(list(keys), None)
        return [self._contents.values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store several values at once."""
        self._begin("multi_set", ", ".join(keys))
        for key, value in zip(keys, values, strict=True):
            self._put(key, _bytes(value))

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are here."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted and kept; a wait without a time-out of its own never ends by one, since a deadlock is found exactly."""
        self._timeout_seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        """What `set_timeout` was given, or 5 minutes as in torch."""
        return timedelta(seconds=300 if self._timeout_seconds is None else self._timeout_seconds)

    def _begin(self, operation: str, key: str) -> None:
        self._execution.checkpoint()
        self._execution.record(EventKind.STORE, text=f"{operation} {key}".rstrip())

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._contents.values for key in keys)

    def _put(self, key: str, value: bytes) -> None:
        contents = self._contents
        contents.values[key] = value
        for rank in [rank for rank, keys in contents.waiting.items() if self._has(keys)]:
            del contents.waiting[rank]
            self._execution.scheduler.wake(rank)

    def _wait(self, keys: list[str], timeout: timedelta | None) -> None:
        if self._has(keys):
            return
        execution = self._execution
        missing = tuple(key for key in keys if key not in self._contents.values)
        rank = execution.me.rank
        self._contents.waiting[rank] = tuple(keys)
        execution.record(EventKind.WAIT, text=f"store key {', '.join(missing)}")
        if not execution.block(StoreWait(missing, site_here()), timeout.total_seconds() if timeout else None):
            del self._contents.waiting[rank]
            raise RuntimeError(f"wait timeout after {round((timeout or timedelta()).total_seconds() * 1000)}ms, keys: {', '.join(missing)}")
        execution.record(EventKind.DONE, text=f"store key {', '.join(missing)}")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
