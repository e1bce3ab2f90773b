"""A key-value store in memory whose waits are choice points.

Torch's functions take it for any of their stores, also under a `PrefixStore` of the program, whose C++ calls come back
here (PythonStore in torch/csrc/distributed/c10d/init.cpp); only queues do not pass one, since torch forwards no queue
to a store written in Python. A group's own prefix is therefore kept here.

A wait without a time-out of its own never ends by one: that a key will never come is found exactly, as a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError, QueueEmptyError

from ddpsim.simulator.accesses import ALL_KEYS, Access, Accesses, Mode
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.execution import Execution
from ddpsim.simulator.waits import StoreWait

DEFAULT_TIMEOUT = timedelta(seconds=300)

_READING = frozenset({"get", "multi_get", "check", "wait", "queue_len"})
_OF_ALL_KEYS = frozenset({"num_keys", "list_keys"})
_MAY_WAIT = frozenset({"get", "multi_get", "check", "wait", "queue_pop"})
"""Operations that touch their keys when these are there, and not when they begin."""


class StoreContents:
    """What the ranks of one execution have stored, and who waits for which keys."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        """Queues that are not empty."""
        self.waiting: dict[int, tuple[str, ...]] = {}
        """By the number of the thread."""

    def has(self, keys: Sequence[str]) -> bool:
        """True if every key has a value or a queue that is not empty."""
        return all(key in self.values or key in self.queues for key in keys)


class MemoryStore(Store):
    """One rank's handle of the store that all ranks share. Every operation is a choice point."""

    def __init__(self, execution: Execution, contents: StoreContents, prefix: str = "") -> None:
        super().__init__()
        self._execution = execution
        self._contents = contents
        self._prefix = prefix
        self._timeout = DEFAULT_TIMEOUT

    def prefixed(self, prefix: str) -> MemoryStore:
        """The same store, seen through a prefix of its keys."""
        store = MemoryStore(self._execution, self._contents, self._prefix + prefix)
        store._timeout = self._timeout
        return store

    def clone(self) -> MemoryStore:
        """This handle, which C++ can rely on: it would not keep the Python half of another one alive."""
        return self

    # --- values -------------------------------------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        key = self._begin("set", key)
        self._put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        return self._value(self._begin("get", key))

    def add(self, key: str, value: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        key = self._begin("add", key)
        total = int(self._contents.values.get(key, b"0")) + value
        self._put(key, str(total).encode())
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` over `expected`, which is empty for a key that is not there; return what is there."""
        key = self._begin("compare_set", key)
        found = self._contents.values.get(key)
        if found == _bytes(expected) or (found is None and not expected):
            self._put(key, _bytes(desired))
            return _bytes(desired)
        return _bytes(expected) if found is None else found

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value, which starts empty."""
        key = self._begin("append", key)
        self._put(key, self._contents.values.get(key, b"") + _bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, once all are there."""
        full = self._begin_all("multi_get", keys)
        self._wait(full, None)
        return [self._value(key) for key in full]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store several values at once."""
        for key, value in zip(self._begin_all("multi_set", keys), values, strict=True):
            self._put(key, _bytes(value))

    def delete_key(self, key: str) -> bool:
        """Forget a key; True if it was there."""
        key = self._begin("delete_key", key)
        had_queue = self._contents.queues.pop(key, None) is not None
        return self._contents.values.pop(key, None) is not None or had_queue

    deleteKey = delete_key

    def num_keys(self) -> int:
        """How many keys there are, under all prefixes."""
        self._begin_all("num_keys", ())
        return len(self._contents.values)

    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """The keys under this prefix, in the order they were first set."""
        self._begin_all("list_keys", ())
        return [key.removeprefix(self._prefix) for key in self._contents.values if key.startswith(self._prefix)]

    # --- waiting ------------------------------------------------------------------------------------------------------

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are there. A poll in vain lets the other ranks run."""
        full = self._begin_all("check", keys)
        accesses = _accesses("check", full)
        if not self._contents.has(full):
            self._execution.poll(accesses)
        self._touch(accesses)
        return self._contents.has(full)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there; raise DistStoreError if `timeout` passes first in virtual time."""
        full = self._begin_all("wait", keys)
        self._wait(full, timeout)
        self._touch(_accesses("wait", full), is_needed=True)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have come here with `key`."""
        if self.add(f"{key}/arrived", 1) % world_size == 0:
            self.set(f"{key}/{self._round(key, world_size)}", b"1")
        self.wait([f"{key}/{self._round(key, world_size)}"], timeout)

    # --- queues -------------------------------------------------------------------------------------------------------

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append to a queue."""
        key = self._begin("queue_push", key)
        self._note_new(key)
        self._contents.queues.setdefault(key, []).append(_bytes(value))
        self._wake_waiting(key)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value of a queue, waiting for one if `block`; raise QueueEmptyError otherwise."""
        key = self._begin("queue_pop", key)
        queues = self._contents.queues
        if key not in queues and not block:
            self._touch(_accesses("queue_pop", [key]))
            raise QueueEmptyError("queue is empty")
        while key not in queues:
            self._wait([key], None)
        self._touch(_accesses("queue_pop", [key]), is_needed=block)
        value = queues[key].pop(0)
        if not queues[key]:
            del queues[key]
        return value

    def queue_len(self, key: str) -> int:
        """How many values a queue has."""
        return len(self._contents.queues.get(self._begin("queue_len", key), ()))

    # --- what torch asks of a store -----------------------------------------------------------------------------------

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are here."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted and kept; see the module's docstring."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """What `set_timeout` was given, or 5 minutes as in torch."""
        return self._timeout

    @property
    def underlying_store(self) -> MemoryStore:
        """The store without a prefix, as PrefixStore has it."""
        return MemoryStore(self._execution, self._contents)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, operation: str, key: str) -> str:
        """The choice point before an operation. Returns the whole key."""
        return self._begin_all(operation, (key,))[0]

    def _begin_all(self, operation: str, keys: Sequence[str]) -> list[str]:
        full = [self._prefix + key for key in keys]
        accesses = _accesses(operation, full)
        self._execution.checkpoint(accesses)
        if operation not in _MAY_WAIT:
            self._touch(accesses)
        self._execution.record(EventKind.STORE, text=f"{operation} {', '.join(full)}".rstrip())
        return full

    def _touch(self, accesses: Accesses, *, is_needed: bool = False) -> None:
        """Tell who explores. Keys that are needed are there by now, and would have been waited for."""
        observer, me = self._execution.observer, self._execution.me.number
        if observer is not None:
            for access in accesses:
                if is_needed:
                    observer.needs(me, access.object)
                observer.touched(me, access)

    def _note_new(self, key: str) -> None:
        observer = self._execution.observer
        if observer is not None and not self._contents.has((key,)):
            observer.created(self._execution.me.number, ("key", key))

    def _value(self, key: str) -> bytes:
        contents = self._contents
        while not contents.has((key,)):  # it may be deleted between the wake-up and now
            self._wait([key], None)
        self._touch(_accesses("get", [key]), is_needed=True)
        return contents.values[key] if key in contents.values else contents.queues[key][0]

    def _put(self, key: str, value: bytes) -> None:
        self._note_new(key)
        self._contents.values[key] = value
        self._wake_waiting(key)

    def _wake_waiting(self, key: str) -> None:
        """Wake whoever waits for `key` and nothing else. All of them: one that wants to take the value looks again."""
        contents, execution = self._contents, self._execution
        for number in [number for number, keys in contents.waiting.items() if key in keys and contents.has(keys)]:
            del contents.waiting[number]
            execution.scheduler.wake(number)  # unless its alarm has just done so

    def _wait(self, keys: list[str], timeout: timedelta | None) -> None:
        contents, execution = self._contents, self._execution
        if contents.has(keys):
            return
        missing = tuple([key for key in keys if not contents.has((key,))])
        names = ", ".join(missing)
        me = execution.me.number
        contents.waiting[me] = tuple(keys)
        execution.record(EventKind.WAIT, text=f"store key {names}")
        in_time = execution.block(StoreWait(missing, site_here()), timeout.total_seconds() if timeout else None)
        contents.waiting.pop(me, None)
        if not in_time and not contents.has(keys):  # they may have come at the instant of the time-out
            execution.record(EventKind.DONE, text=f"store key {names} timed out")
            milliseconds = round((timeout or timedelta()).total_seconds() * 1000)
            raise DistStoreError(f"wait timeout after {milliseconds}ms, keys: {', '.join('/' + key for key in keys)}")
        execution.record(EventKind.DONE, text=f"store key {names}")

    def _round(self, key: str, world_size: int) -> int:
        """How often `key` has seen all callers of a barrier, counting the one under way."""
        arrived = int(self._contents.values[f"{self._prefix}{key}/arrived"])
        return -(-arrived // world_size)


def _accesses(operation: str, keys: Sequence[str]) -> Accesses:
    if operation in _OF_ALL_KEYS:
        return (Access(ALL_KEYS, Mode.READ),)
    mode = Mode.READ if operation in _READING else Mode.WRITE
    return tuple([Access(("key", key), mode) for key in keys])


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
