"""The key-value store that all ranks share.

A wait without a time-out of its own never ends by one: that a key will never come is found exactly, as a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpsim.simulator.accesses import ALL_KEYS, Access, Accesses, Mode
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.answers import Refuse
from ddpsim.simulator.kernel.endings import RequestEnded
from ddpsim.simulator.kernel.pauses import Pauses
from ddpsim.simulator.kernel.requests import StoreOperation
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.tasks import Script, Task
from ddpsim.simulator.kernel.turns import Turns
from ddpsim.simulator.waits import StoreWait

_STORE = EventKind.STORE  # as in turns.py

_READING = frozenset({"get", "multi_get", "check", "wait", "queue_len"})
_OF_ALL_KEYS = frozenset({"num_keys", "list_keys"})
MAY_WAIT = frozenset({"get", "multi_get", "check", "wait", "queue_pop"})
"""Operations that touch their keys when these are there, and not when they begin."""


class KeyValues:
    """What the ranks of one execution have stored, and who waits for which keys."""

    def __init__(self, run: Run, turns: Turns, pauses: Pauses) -> None:
        self._run = run
        self._turns = turns
        self._pauses = pauses
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}
        """Queues that are not empty."""
        self._waiting: dict[int, tuple[str, ...]] = {}
        """By the number of the task."""
        self._looked: dict[tuple[int, str], int] = {}
        """What tasks have found that added 0 to a number, by task and key."""
        self._at_once: Mapping[str, Callable[[Task, StoreOperation], Any]] = {
            "set": self._set,
            "multi_set": self._set,
            "compare_set": self._compare_set,
            "append": self._append,
            "delete_key": self._delete,
            "num_keys": self._count_keys,
            "list_keys": self._list_keys,
            "queue_push": self._push,
            "queue_len": self._length,
        }
        self._waiting_operations: Mapping[str, Callable[[Task, StoreOperation], Script]] = {
            "get": self._get,
            "multi_get": self._get,
            "add": self._add,
            "check": self._check,
            "wait": self._wait,
            "queue_pop": self._pop,
        }

    def on_operation(self, me: Task, request: StoreOperation) -> Script:
        """Serve `StoreOperation`: a choice point, an event, and the operation."""
        operation, keys = request.operation, request.keys
        accesses = _accesses(operation, keys)
        successor = self._turns.stand(me, accesses)
        if successor is not None:
            yield from self._pauses.hold_up(me, successor)
        if operation not in MAY_WAIT:
            self._touch(me, accesses)
        self._run.record(_STORE, text=f"{operation} {', '.join(keys)}".rstrip())
        if operation in self._at_once:
            return self._at_once[operation](me, request)
        return (yield from self._waiting_operations[operation](me, request))

    # --- operations ---------------------------------------------------------------------------------------------------

    def _set(self, me: Task, request: StoreOperation) -> None:
        try:
            for key, value in zip(request.keys, request.values, strict=True):
                self._put(me, key, value)
        except ValueError as error:
            raise RequestEnded(Refuse("ValueError", str(error))) from error

    def _get(self, me: Task, request: StoreOperation) -> Script:
        """The values of keys, once all are there."""
        if request.operation == "multi_get":
            yield from self._await(me, request.keys, request)
        found = []
        for key in request.keys:
            while not self._has((key,)):  # it may be deleted between the wake-up and now
                yield from self._await(me, (key,), request)
            self._touch(me, _accesses("get", [key]), is_needed=True)
            found.append(self._values[key] if key in self._values else self._queues[key][0])
        return tuple(found)

    def _add(self, me: Task, request: StoreOperation) -> Script:
        """The sum. To add 0 is how one looks at a number: to find the same again lets the other ranks run."""
        (key,) = request.keys
        if not request.amount and self._looked.get((me.number, key)) == self._number(key):
            yield from self._pauses.poll(me, _accesses("add", [key]))
        total = self._number(key) + request.amount
        if not request.amount:
            self._looked[me.number, key] = total
        self._put(me, key, str(total).encode())
        return total

    def _number(self, key: str) -> int:
        try:
            return int(self._values.get(key, b"0"))
        except ValueError as error:
            raise RequestEnded(Refuse("ValueError", str(error))) from error

    def _compare_set(self, me: Task, request: StoreOperation) -> bytes:
        """Store the second value over the first, which is empty for a key that is not there; what is there then."""
        (key,), (expected, desired) = request.keys, request.values
        found = self._values.get(key)
        if found == expected or (found is None and not expected):
            self._put(me, key, desired)
            return desired
        return expected if found is None else found

    def _append(self, me: Task, request: StoreOperation) -> None:
        (key,), (value,) = request.keys, request.values
        self._put(me, key, self._values.get(key, b"") + value)

    def _delete(self, me: Task, request: StoreOperation) -> bool:
        (key,) = request.keys
        had_queue = self._queues.pop(key, None) is not None
        return self._values.pop(key, None) is not None or had_queue

    def _count_keys(self, me: Task, request: StoreOperation) -> int:
        return len(self._values)

    def _list_keys(self, me: Task, request: StoreOperation) -> tuple[str, ...]:
        return tuple(key for key in self._values if key.startswith(request.prefix))

    def _check(self, me: Task, request: StoreOperation) -> Script:
        """True if all keys are there. To look in vain lets the other ranks run."""
        accesses = _accesses("check", request.keys)
        if not self._has(request.keys):
            yield from self._pauses.poll(me, accesses)
        self._touch(me, accesses)
        return self._has(request.keys)

    def _wait(self, me: Task, request: StoreOperation) -> Script:
        """Wait until all keys are there. False if the time-out passed first."""
        if not (yield from self._await(me, request.keys, request)):
            return False
        self._touch(me, _accesses("wait", request.keys), is_needed=True)
        return True

    def _push(self, me: Task, request: StoreOperation) -> None:
        (key,), (value,) = request.keys, request.values
        self._note_new(me, key)
        self._queues.setdefault(key, []).append(value)
        self._wake_waiting(key)

    def _pop(self, me: Task, request: StoreOperation) -> Script:
        """Take the oldest value of a queue; None if there is none and the caller does not wait for one."""
        (key,) = request.keys
        accesses = _accesses("queue_pop", [key])
        if key not in self._queues and not request.may_wait:
            self._touch(me, accesses)
            return None
        while key not in self._queues:
            yield from self._await(me, (key,), request)
        self._touch(me, accesses, is_needed=request.may_wait)
        value = self._queues[key].pop(0)
        if not self._queues[key]:
            del self._queues[key]
        return value

    def _length(self, me: Task, request: StoreOperation) -> int:
        (key,) = request.keys
        return len(self._queues.get(key, ()))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _has(self, keys: Sequence[str]) -> bool:
        """True if every key has a value or a queue that is not empty."""
        return all(key in self._values or key in self._queues for key in keys)

    def _touch(self, me: Task, accesses: Accesses, *, is_needed: bool = False) -> None:
        """Tell who explores. Keys that are needed are there by now, and would have been waited for."""
        observer = self._run.observer
        if observer is not None:
            for access in accesses:
                if is_needed:
                    observer.needs(me.number, access.object)
                observer.touched(me.number, access)

    def _note_new(self, me: Task, key: str) -> None:
        observer = self._run.observer
        if observer is not None and not self._has((key,)):
            observer.created(me.number, ("key", key))

    def _put(self, me: Task, key: str, value: bytes) -> None:
        self._note_new(me, key)
        self._values[key] = value
        self._wake_waiting(key)

    def _wake_waiting(self, key: str) -> None:
        """Wake whoever waits for `key` and nothing else. All of them: one that wants to take the value looks again."""
        waiting = self._waiting
        for number in [number for number, keys in waiting.items() if key in keys and self._has(keys)]:
            del waiting[number]
            self._turns.wake(number)  # unless its alarm has just done so

    def _await(self, me: Task, keys: Sequence[str], request: StoreOperation) -> Script:
        """Wait until all keys are there. False if the time-out of the request, a `wait`, passed first."""
        if self._has(keys):
            return True
        missing = tuple([key for key in keys if not self._has((key,))])
        what = f"store key {', '.join(missing)}"
        self._waiting[me.number] = tuple(keys)
        self._run.record(EventKind.WAIT, text=what)
        in_time = yield from self._pauses.block(me, StoreWait(missing, request.site), request.timeout_seconds)
        self._waiting.pop(me.number, None)
        in_time = in_time or self._has(keys)  # they may have come at the instant of the time-out
        self._run.record(EventKind.DONE, text=what if in_time else f"{what} timed out")
        return in_time


def _accesses(operation: str, keys: Sequence[str]) -> Accesses:
    if operation in _OF_ALL_KEYS:
        return (Access(ALL_KEYS, Mode.READ),)
    mode = Mode.READ if operation in _READING else Mode.WRITE
    return tuple([Access(("key", key), mode) for key in keys])
