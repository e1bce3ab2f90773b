"""A key-value store in memory, like torch's TCPStore. At each operation other ranks may run first.

Torch's functions take it for any of their stores, also under a `PrefixStore` of the program, whose C++ calls come back
here (PythonStore in torch/csrc/distributed/c10d/init.cpp); only queues do not pass one, since torch forwards no queue
to a store written in Python. A group's own prefix is therefore kept here. The values are in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError, DistStoreError, QueueEmptyError

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.calls import NOWHERE
from ddpsim.simulator.diagnosis.rank_errors import SERVER_ENDED, MissingKeys
from ddpsim.simulator.kernel.key_values import MAY_WAIT
from ddpsim.simulator.kernel.requests import StoreOperation
from ddpsim.simulator.process_group.arguments import time_limit
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host

DEFAULT_TIMEOUT = timedelta(seconds=300)
_UNANSWERED = frozenset({"set", "multi_set", "append", "queue_push"})
"""Requests for whose answer torch's client does not wait: the first one after the server's end raises nothing."""


class SimulatedStore(Store):
    """One rank's handle of the key-value store that all ranks share. At each operation other ranks may run first."""

    def __init__(self, host: Host, prefix: str = "") -> None:
        super().__init__()
        self._host = host
        self._prefix = prefix
        self._namespace = ""
        """The part of the key prefix that programs do not see."""
        self._timeout = DEFAULT_TIMEOUT
        self._limit: timedelta | None = None
        """The time-out for waits that give none themselves; None for no limit."""
        self._server, self._is_cut_off = "", False

    def with_prefix(self, prefix: str) -> SimulatedStore:
        """Return a handle of the same store that puts a prefix before all keys."""
        store = SimulatedStore(self._host, f"{self._prefix}{prefix}/")
        store._namespace, store._timeout, store._limit = self._namespace, self._timeout, self._limit
        store._server = self._server
        return store

    def clone(self) -> SimulatedStore:
        """Return this handle itself. C++ would not keep the Python half of a new handle alive."""
        return self

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value under a key."""
        self._ask_kernel("set", [key], [value])

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until the key exists."""
        self._wait_if_limited([key])
        return bytes(self._ask_kernel("get", [key])[0])

    def add(self, key: str, value: int) -> int:
        """Add to the number stored under a key, 0 at first, and return the sum."""
        return int(self._ask_kernel("add", [key], amount=value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the key's value is `expected` (empty for a missing key). Return the resulting value."""
        return bytes(self._ask_kernel("compare_set", [key], [expected, desired]))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key, which is empty at first."""
        self._ask_kernel("append", [key], [value])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of several keys; wait until all exist."""
        self._wait_if_limited(keys)
        return list(self._ask_kernel("multi_get", keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store several values at once."""
        self._ask_kernel("multi_set", keys, values)

    def delete_key(self, key: str) -> bool:
        """Delete a key; True if it existed."""
        return bool(self._ask_kernel("delete_key", [key]))

    deleteKey = delete_key

    def num_keys(self) -> int:
        """Return the number of keys under all prefixes."""
        return int(self._ask_kernel("num_keys"))

    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """Return the keys under this prefix, sorted."""
        return [key.removeprefix(self._prefix) for key in self._ask_kernel("list_keys")]

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys exist. If not, return False after other ranks have run."""
        return bool(self._ask_kernel("check", keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist; raise DistStoreError if `timeout` passes first in virtual time."""
        self._report_limit(AccessMode.READ)
        timeout = time_limit("wait", timeout) if timeout else self._limit
        seconds = timeout.total_seconds() if timeout else None
        if missing := self._ask_kernel("wait", keys, timeout_seconds=seconds):
            raise self._timeout_error(keys, timeout or self._timeout, missing)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have called this with `key`."""
        arrived = self.add(f"{key}/arrived", 1)
        done = f"{key}/{-(-arrived // world_size)}"  # complete rounds, and the round under way
        if arrived % world_size == 0:
            self.set(done, b"1")
        self.wait([done], timeout)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append a value to the queue of a key."""
        self._ask_kernel("queue_push", [key], [value])

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value of a queue. If there is none, wait if `block`, else raise QueueEmptyError."""
        if block:
            self._wait_if_limited([key])
        value: bytes | None = self._ask_kernel("queue_pop", [key], may_wait=block)
        if value is None:
            raise QueueEmptyError("queue is empty")
        return value

    def queue_len(self, key: str) -> int:
        """Return the number of values in a queue."""
        return int(self._ask_kernel("queue_len", [key]))

    def has_extended_api(self) -> bool:
        """Return True: append, multi_get and multi_set exist."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out, in virtual time, for waits that give none themselves.

        torch sets that of the group once more: it ends no wait in a deadlock. Any other is the program's.
        """
        if timeout != self._timeout:
            self._report_limit(AccessMode.WRITE)
            self._timeout = self._limit = time_limit("set_timeout", timeout)

    @property
    def timeout(self) -> timedelta:
        """The value given to `set_timeout`, or 5 minutes as in torch."""
        return self._timeout

    @property
    def underlying_store(self) -> SimulatedStore:
        """The same store without a prefix, as torch's PrefixStore has it."""
        return SimulatedStore(self._host)

    def _wait_if_limited(self, keys: Sequence[str]) -> None:
        self._report_limit(AccessMode.READ)
        if self._limit is not None:
            self.wait(keys)

    def _report_limit(self, mode: AccessMode) -> None:
        """Report that the caller uses or changes the limit of waits, which threads that share this handle share."""
        if self._host.is_rank_thread():
            self._host.report_shared_access(Access(("limit", self._host.running_thread.rank, self._prefix), mode))

    def _ask_kernel(
        self,
        operation: str,
        keys: Sequence[str] = (),
        values: Sequence[str | bytes] = (),
        *,
        amount: int = 0,
        timeout_seconds: float | None = None,
        may_wait: bool = True,
    ) -> Any:
        may_wait_long = operation in MAY_WAIT
        request = StoreOperation(
            operation,
            tuple([self._prefix + key for key in keys]),
            tuple(map(_as_bytes, values)),
            amount,
            self._prefix,
            timeout_seconds,
            self._timeout.total_seconds() if may_wait_long else None,
            current_user_site() if may_wait_long else NOWHERE,
            may_wait,
            self._server,
        )
        try:
            return self._host.send_request(request)
        except TimeoutError as error:
            raise self._timeout_error(keys, self._timeout, str(error).splitlines()) from None
        except ConnectionError:
            client = getattr(self, "_underlying_non_prefix_store", self)
            was_cut_off, client._is_cut_off = client._is_cut_off, True
            if was_cut_off or operation not in _UNANSWERED:
                raise DistNetworkError("Broken pipe" if was_cut_off else SERVER_ENDED) from None
            return None

    def _timeout_error(self, keys: Sequence[str], limit: timedelta, missing: Sequence[str]) -> DistStoreError:
        prefix = self._prefix.removeprefix(self._namespace)
        names = ", ".join(f"/{prefix}{key}" for key in keys)
        error = DistStoreError(f"wait timeout after {round(limit.total_seconds() * 1000)}ms, keys: {names}")
        error.reason = MissingKeys(tuple(missing))  # type: ignore[attr-defined]  # for the finding
        return error


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
