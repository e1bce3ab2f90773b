"""The key-value store that all ranks share.

A wait without its own time-out has that of the store, which is none in a deadlock: see time_outs.py. The exploration of
schedules gets what each operation did: an operation that changed nothing counts as a read. A rank that repeats a
read with the same result is taken to poll: the other ranks run first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

from ddpsim.simulator.accesses import ALL_KEYS, Access, Accesses, AccessMode
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.answers import RejectRequest
from ddpsim.simulator.kernel.endings import CallerStopped
from ddpsim.simulator.kernel.pauses import PauseRequests
from ddpsim.simulator.kernel.requests import StoreOperation
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.scheduler import Scheduler
from ddpsim.simulator.kernel.states import TaskState
from ddpsim.simulator.kernel.tasks import Script, Task
from ddpsim.simulator.waits import StoreWait

_OF_RANKS = re.compile(r"(tcp port|server at tcp|owner of tcp|all \d+ clients of|hash store|store \d+/)")
"""Matches the keys of stores that are in a rank's process, and end with it."""
_OF_FILES = re.compile("file /")
_STORE = EventKind.STORE  # faster to look up, see scheduler.py

_READING = frozenset({"get", "multi_get", "check", "wait", "queue_len"})
_OF_ALL_KEYS = frozenset({"num_keys", "list_keys"})
_WRITING = frozenset({"set", "multi_set", "add", "compare_set"})
MAY_WAIT = frozenset({"get", "multi_get", "check", "wait", "queue_pop"})
"""Store operations that may have to wait until their keys exist."""
_EQUAL_READS_PER_POLL = 2
"""So many equal reads in a row count as polling. For an operation such as `compare_set`, one repetition is enough."""


class KeyValueStore:
    """The values that the ranks of one run stored, and which ranks wait for which keys."""

    def __init__(self, run: RunState, turns: Scheduler, pauses: PauseRequests) -> None:
        self._run = run
        self._turns = turns
        self._pauses = pauses
        self._values: dict[str, bytes] = dict(run.kept_keys)
        self._queues: dict[str, list[bytes]] = {}
        """The queues of the store that are not empty, by key."""
        self._waiting: dict[int, tuple[Task, tuple[str, ...], str]] = {}
        """By task number: the task (a rank's program or thread), the keys that it waits for, and its store's server."""
        self._looked: dict[tuple[int, StoreOperation], tuple[object, int, int]] = {}
        """By task and operation that changed nothing: the result, the number of calls and writes before it, and how
        often it was repeated."""
        self._written: dict[int, int] = {}
        """By task (a rank's program or thread), the number of store operations that changed a value."""
        self._setters: dict[str, tuple[int, int]] = {}
        """By key, the rank that made it, and the rank's number of calls then."""
        self._read: set[tuple[int, int]] = set()
        """The ranks that have read something, each with its number of calls then."""

    def lasting_keys(self, *, has_agent_store: bool) -> Mapping[str, bytes]:
        """Return the values that outlive the ranks: of files, and of the agent's store, if there is one."""
        lasting = _OF_FILES if not has_agent_store else _OF_RANKS
        return {key: value for key, value in self._values.items() if bool(lasting.match(key)) is not has_agent_store}

    def on_store_operation(self, me: Task, request: StoreOperation) -> Script:
        """Answer a rank's `StoreOperation` request: let other ranks run, record an event, and do the operation."""
        operation, keys = request.operation, request.keys
        accesses = _accesses(operation, keys) + (_accesses("get", (request.server,)) if request.server else ())
        self._run.observer.used_feature(operation)
        successor = self._turns.yield_point(me, accesses)
        if successor is not None:
            yield from self._pauses.wait_for_turn(me, successor)
        self._run.record_event(_STORE, text=f"{operation} {', '.join(keys)}".rstrip())
        if (look := self._unchanged_result(request)) is not None and self._repeats_last_result(me, request, look):
            yield from self._pauses.poll_task(me, accesses, steps=2)
        self._check_server(me, request)
        if operation in self._at_once:
            return self._at_once[operation](self, me, request)
        answer = yield from self._waiting_operations[operation](self, me, request)
        self._read.add((me.rank.rank, me.rank.calls_made))
        return answer

    def _set_keys(self, me: Task, request: StoreOperation) -> None:
        try:
            for key, value in zip(request.keys, request.values, strict=True):
                self._store_value(me, key, value)
        except ValueError as error:
            raise CallerStopped(RejectRequest("ValueError", str(error))) from error

    def _get_values(self, me: Task, request: StoreOperation) -> Script:
        """Return the values of keys; wait until all of them exist."""
        if request.operation == "multi_get":
            yield from self._await_keys(me, request.keys, request)
        found = []
        for key in request.keys:
            while not self._all_exist((key,)):  # it may be deleted between the wake-up and now
                yield from self._await_keys(me, (key,), request)
            self._report_reads(me, (key,), is_needed=True)
            found.append(self._values[key] if key in self._values else self._queues[key][0])
        return tuple(found)

    def _add_to_number(self, me: Task, request: StoreOperation) -> int:
        """Add to a number and return the sum. Adding 0 counts as a read."""
        (key,) = request.keys
        try:
            total = int(self._values.get(key, b"0")) + request.amount
        except ValueError as error:
            self._report_reads(me, request.keys)
            raise CallerStopped(RejectRequest("ValueError", str(error))) from error
        self._store_value(me, key, str(total).encode())
        return total

    def _compare_set(self, me: Task, request: StoreOperation) -> bytes:
        """Replace a key's value if it equals the first given value (empty for a missing key); return the new value."""
        (key,), (expected, desired) = request.keys, request.values
        found = self._values.get(key)
        if found == expected or (found is None and not expected):
            self._store_value(me, key, desired)
            return desired
        self._report_reads(me, request.keys)
        return expected if found is None else found

    def _append_to_value(self, me: Task, request: StoreOperation) -> None:
        (key,), (value,) = request.keys, request.values
        self._store_value(me, key, self._values.get(key, b"") + value)

    def _delete_key(self, me: Task, request: StoreOperation) -> bool:
        (key,) = request.keys
        if not self._all_exist((key,)):
            self._report_reads(me, (key,))
            return False
        self._report_access(me, key, AccessMode.WRITE)
        self._queues.pop(key, None)
        self._values.pop(key, None)
        self._report_removed_key(key)
        self._wake_waiting(me, key)  # those who wait for a key on a server that has ended with this
        return True

    def _count_keys(self, me: Task, request: StoreOperation) -> int:
        self._report_reads(me, ALL_KEYS[1:])
        return len(self._values)

    def _list_keys(self, me: Task, request: StoreOperation) -> tuple[str, ...]:
        """Return the keys sorted by name. torch promises no order, and the order of creation varies."""
        self._report_reads(me, ALL_KEYS[1:])
        return tuple(sorted(key for key in self._values if key.startswith(request.prefix)))

    def _check_keys(self, me: Task, request: StoreOperation) -> Script:
        """True if all keys exist. If not, return False after the other ranks have run."""
        if not self._all_exist(request.keys):
            yield from self._pauses.poll_task(me, _accesses("check", request.keys), steps=2)
        self._report_reads(me, request.keys)
        self._note_look(me, request)
        return self._all_exist(request.keys)

    def _wait_for_keys(self, me: Task, request: StoreOperation) -> Script:
        """Wait until all keys exist. Return the missing keys if the time-out passed first."""
        if (yield from self._await_keys(me, request.keys, request)):
            self._report_reads(me, request.keys, is_needed=True)
            return ()
        self._report_reads(me, request.keys)
        return self._missing_keys(request.keys)  # they may have been set at the instant of the time-out

    def _push_to_queue(self, me: Task, request: StoreOperation) -> None:
        (key,), (value,) = request.keys, request.values
        self._report_access(me, key, AccessMode.WRITE)
        self._report_new_key(me, key)
        self._queues.setdefault(key, []).append(value)
        self._wake_waiting(me, key)

    def _pop_from_queue(self, me: Task, request: StoreOperation) -> Script:
        """Take the oldest value of a queue.

        None if the queue is empty and the caller does not wait, or the key has a plain value.
        """
        (key,) = request.keys
        while key not in self._queues:
            if not request.may_wait or key in self._values:  # as torch's stores: it waits for the key, whatever it has
                self._report_reads(me, (key,), is_needed=request.may_wait)
                return None
            yield from self._await_keys(me, (key,), request)
        self._report_access(me, key, AccessMode.WRITE, is_needed=request.may_wait)
        value = self._queues[key].pop(0)
        if not self._queues[key]:
            del self._queues[key]
            self._report_removed_key(key)
            self._update_waits(key)
        return value

    def _queue_length(self, me: Task, request: StoreOperation) -> int:
        (key,) = request.keys
        self._report_reads(me, (key,))
        return len(self._queues.get(key, ()))

    _at_once: ClassVar[Mapping[str, Callable[[KeyValueStore, Task, StoreOperation], Any]]] = {
        "set": _set_keys,
        "multi_set": _set_keys,
        "add": _add_to_number,
        "compare_set": _compare_set,
        "append": _append_to_value,
        "delete_key": _delete_key,
        "num_keys": _count_keys,
        "list_keys": _list_keys,
        "queue_push": _push_to_queue,
        "queue_len": _queue_length,
    }
    _waiting_operations: ClassVar[Mapping[str, Callable[[KeyValueStore, Task, StoreOperation], Script]]] = {
        "get": _get_values,
        "multi_get": _get_values,
        "check": _check_keys,
        "wait": _wait_for_keys,
        "queue_pop": _pop_from_queue,
    }

    def _all_exist(self, keys: Sequence[str]) -> bool:
        """True if every key has a value or a queue that is not empty."""
        return all(key in self._values or key in self._queues for key in keys)

    def _check_server(self, me: Task, request: StoreOperation) -> None:
        """Reject a request to a store whose server has ended with the program of the rank that made it."""
        if request.server:
            self._report_access(me, request.server, AccessMode.READ)
            if request.server not in self._values:
                raise CallerStopped(RejectRequest("ConnectionError", request.server))

    def _report_reads(self, me: Task, keys: Sequence[str | int], *, is_needed: bool = False) -> None:
        for key in keys:
            self._report_access(me, key, AccessMode.READ, is_needed=is_needed)

    def _report_access(self, me: Task, key: str | int, mode: AccessMode, *, is_needed: bool = False) -> None:
        """Report an access of a key to the exploration of schedules. `is_needed`: the rank waited for the key."""
        if mode is AccessMode.WRITE:
            self._written[me.number] = self._written.get(me.number, 0) + 1
            self._pauses.changed_values += 1
        if is_needed:
            self._run.observer.needed_key(me.number, ("key", key))
        self._run.observer.accessed(me.number, Access(("key", key), mode))

    def _unchanged_result(self, request: StoreOperation) -> object:
        """Return an operation's result if it changes nothing now; None if it changes a value or has to wait."""
        operation, keys, values = request.operation, request.keys, self._values
        if operation in _OF_ALL_KEYS:
            return len(values)
        found = tuple([values.get(key) for key in keys])
        match operation:
            case "queue_len" | "queue_pop":
                length = len(self._queues.get(keys[0], ()))
                return None if operation == "queue_pop" and (length or request.may_wait) else length
            case "compare_set":
                expected, desired = request.values
                return None if (found[0] or b"") == expected and found[0] != desired else found
            case "set" | "multi_set":
                return found if found == request.values else None
            case "add":
                return None if request.amount or None in found else found
        return found if operation in _READING and None not in found else None

    def _repeats_last_result(self, me: Task, request: StoreOperation, found: object) -> bool:
        """True if a task (a rank's program or thread) repeats an operation with the same result, so it polls."""
        done = me.rank.calls_made + self._written.get(me.number, 0)
        before = self._looked.get((me.number, request))
        times = 1 if before is None or before[:2] != (found, done) else before[2] + 1
        self._looked[me.number, request] = found, done, times
        return times > (1 if request.operation in _WRITING else _EQUAL_READS_PER_POLL)

    def _note_look(self, me: Task, request: StoreOperation) -> None:
        """Note a look for a key that another rank made since the last call of both, if nothing else told the rank."""
        rank, calls = me.rank.rank, me.rank.calls_made
        maker, then = self._setters.get(request.keys[0], (rank, calls)) if request.keys else (rank, calls)
        if maker != rank and then == calls and (rank, calls) not in self._read:
            self._run.looks.append((request.site, rank, maker))

    def _report_new_key(self, me: Task, key: str) -> None:
        if not self._all_exist((key,)):
            self._setters[key] = me.rank.rank, me.rank.calls_made
            self._run.observer.created_key(me.number, ("key", key))

    def _store_value(self, me: Task, key: str, value: bytes) -> None:
        self._report_access(me, key, AccessMode.READ if self._values.get(key) == value else AccessMode.WRITE)
        self._report_new_key(me, key)
        self._values[key] = value
        self._wake_waiting(me, key)

    def _report_removed_key(self, key: str) -> None:
        """Report to the exploration of schedules that a key was removed, for each rank that waits for this key and
        others. Such a rank lacks the key from now on; had the other keys been set sooner, it would have gone on."""
        observer = self._run.observer
        observer.removed_key(("key", key))
        for number, (task, keys, _) in self._waiting.items():
            if key in keys and task.state is TaskState.WAITING:
                observer.accessed(number, Access(("key", key), AccessMode.MISS))
                observer.about_to_access(number, _accesses("wait", keys))

    def _report_released_rank(self, me: Task, number: int, keys: Sequence[str]) -> None:
        """Report to the exploration of schedules that a waiting rank continues. The rank that set the last missing key
        counts as having read the other keys."""
        observer = self._run.observer
        if self._run.tasks[number].state is TaskState.WAITING:
            for key in keys[1:] and keys:  # a single key, which this rank has just set
                observer.accessed(me.number, Access(("key", key), AccessMode.READ))
            observer.released_rank(me.number, number, tuple([("key", key) for key in keys]))

    def _wake_waiting(self, me: Task, key: str) -> None:
        """Wake all ranks that wait only for `key`. A rank that takes the value checks again if it is still there."""
        for number, (_, keys, server) in [each for each in self._waiting.items() if key in (*each[1][1], each[1][2])]:
            if self._all_exist(keys) or (server and server not in self._values):
                self._report_released_rank(me, number, keys)
                del self._waiting[number]
                self._turns.wake_task(number)  # unless its time-out has woken it already
        self._update_waits(key)

    def _update_waits(self, key: str) -> None:
        """Update the ranks that wait for `key` and other keys: each now waits for the keys that are still missing."""
        for task, keys, _ in self._waiting.values():
            if key in keys and isinstance(task.wait, StoreWait):
                task.wait = replace(task.wait, keys=self._missing_keys(keys))

    def _missing_keys(self, keys: Sequence[str]) -> tuple[str, ...]:
        return tuple([key for key in keys if not self._all_exist((key,))])

    def _await_keys(self, me: Task, keys: Sequence[str], request: StoreOperation) -> Script:
        """Wait until all keys exist. False if the time-out of the store's `wait` passed first. The keys may exist even
        then, set at the same instant."""
        if self._all_exist(keys):
            return True
        missing = self._missing_keys(keys)
        # Without a time-out it makes no difference whether it waited before the key was set.
        has_alarm = request.timeout_seconds is not None
        for key in missing:
            self._report_access(me, key, AccessMode.READ if has_alarm else AccessMode.MISS)
        self._run.observer.began_to_wait(me.number, is_for_good=len(keys) > 1 or request.operation == "wait")
        what = f"store key {', '.join(missing)}"
        self._waiting[me.number] = me, tuple(keys), request.server
        self._run.record_event(EventKind.WAIT, text=what)
        me.store_seconds, time_outs = request.store_seconds, self._turns.time_outs
        time_outs.least_seconds = min(time_outs.least_seconds, request.store_seconds or inf)
        try:
            in_time = yield from self._pauses.block_task(me, StoreWait(missing, request.site), request.timeout_seconds)
        finally:  # also where the wait ends with the task
            self._waiting.pop(me.number, None)
        has_come = in_time or self._all_exist(keys)
        self._run.record_event(EventKind.DONE, text=what if has_come else f"{what} timed out")
        if not self._all_exist(keys):
            self._check_server(me, request)
        if not has_come and not has_alarm:
            raise CallerStopped(RejectRequest("TimeoutError", "\n".join(self._missing_keys(keys))))
        return in_time


def _accesses(operation: str, keys: Sequence[str]) -> Accesses:
    if operation in _OF_ALL_KEYS:
        return (Access(ALL_KEYS, AccessMode.READ),)
    mode = AccessMode.READ if operation in _READING else AccessMode.WRITE
    return tuple([Access(("key", key), mode) for key in keys])
