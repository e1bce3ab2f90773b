"""Waits for what is outside the simulation: file locks, locks and data of multiprocessing, sockets that are read as
files, child processes, files, and keys of stores that are older than the run.

A rank that looks for such a thing in vain lets the other ranks run, and looks again when none of them can. Virtual time
then goes on as fast as real time; at a file lock that another rank holds, at once.

Not covered: other reads of sockets and of file objects, such as `Popen.stdout`, and other native code. Where ranks are
threads, a wait for a child process keeps the others from running, as torch compiles in child processes under a lock.
"""

import fcntl
import multiprocessing.connection
import multiprocessing.synchronize
import os
import select
import selectors
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic, sleep  # bound here: inside a rank, the functions of `time` are virtual
from types import FrameType
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError
from torch.utils.file_baton import FileBaton

from ddpsim.simulator.kernel.requests import AwaitOutside
from ddpsim.simulator.runtime.call_sites import current_user_site, frames_outwards
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.outside import wait_outside
from ddpsim.simulator.runtime.replaced import Replacement, on_ranks
from ddpsim.simulator.waits import BUILD_LOCK, OutsideWait

T = TypeVar("T")

_PAUSE_SECONDS = 0.002

_LOOKS_PER_POLL = 1_000
"""A rank that has looked so often at files that it had seen already, and did nothing else, is taken to wait for one."""

LOOKING = ("access", "listdir", "lstat", "scandir", "stat")
"""Functions of `os` by which programs look for a file."""


class OutsideWaits:
    """The waits of one run's ranks for what is outside the simulation."""

    def __init__(self, host: Host, *, are_processes: bool) -> None:
        self._host = host
        self._are_processes = are_processes
        self._seen: set[Any] = set()
        """What the running rank has looked at since the run's step `_looked_at`."""
        self._looks, self._looked_at = 0, -1
        self._file_wait: AwaitOutside | None = None
        """The latest request of a rank that looks at the same files again and again; None after another step."""
        self._file_wait_since = 0.0

    def replacements(self) -> list[Replacement]:
        """Return the replacements of functions that wait for something outside the simulation, or look for files."""
        locks, connections = multiprocessing.synchronize.SemLock, multiprocessing.connection.Connection
        on = partial(on_ranks, self._host)
        found: list[Replacement] = [
            *((fcntl, name, on(self._lock_file)) for name in ("fcntl", "flock", "lockf")),
            (locks, "acquire", self._make_acquire),
            (locks, "__enter__", lambda original: lambda lock: lock.acquire()),
            (connections, "_recv", on(self._receive)),
            (socket.SocketIO, "readinto", on(self._read_socket)),
            (selectors.PollSelector, "select", on(self._select)),
            (FileBaton, "wait", on(self._await_build)),
            (Store, "wait", on(self._await_keys)),
            (Store, "get", on(self._get_key)),
        ]
        if self._are_processes:  # there rank_processes/external_effects.py tells which files a rank looks for
            return found + [(os, name, on(self._await_child)) for name in ("waitpid", "wait4")]
        return found + [(os, name, on(self._look)) for name in LOOKING]

    def _wait_for(
        self,
        look: Callable[[], T | None],
        what: str,
        timeout: float | None = None,
        holders_of: Callable[[], frozenset[int]] = frozenset,
    ) -> T | None:
        """Return what `look` returns, once that is not None; None if the time-out passes first, in virtual time."""

        def as_wait(*, may_last: bool) -> OutsideWait:
            holders = holders_of()
            is_of_ranks = not self._are_processes and holders == {os.getpid()}  # else the coordinator knows
            return OutsideWait(what, is_of_ranks, may_last, current_user_site(), holders)

        return wait_outside(self._host, partial(_look_for, look), as_wait, timeout)

    def note_look(self, *at: Any) -> None:
        """Note that a rank looks at a file. If it has looked at the same ones again and again, let others run."""
        host = self._host
        if host.steps != self._looked_at:
            self._looked_at, self._looks, self._file_wait = host.steps, 0, None
            self._seen.clear()
        seen = len(self._seen)
        with suppress(TypeError):  # not hashable
            self._seen.add(at)
        self._looks += len(self._seen) == seen
        if self._looks < _LOOKS_PER_POLL:
            return
        if not self._are_processes and _is_in_import(sys._getframe(1)):
            self._looks = 0
            return
        if self._file_wait is None:
            request = AwaitOutside(OutsideWait("a file", may_last=True, site=current_user_site()), is_first=True)
        else:
            request = self._file_wait._replace(is_first=False, seconds=monotonic() - self._file_wait_since)
        host.send_request(request)
        self._file_wait, self._file_wait_since, self._looks, self._looked_at = request, monotonic(), 0, host.steps

    def _look(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.note_look(original, *arguments[:1])
        return original(*arguments, **options)

    def _lock_file(self, original: Callable[..., Any], file: Any, operation: int, *arguments: Any) -> Any:
        at_once = _without_wait(original.__name__, operation)
        if at_once is None:
            return original(file, operation, *arguments)

        def take() -> tuple[Any] | None:
            with suppress(BlockingIOError, PermissionError):
                return (original(file, at_once, *arguments),)
            return None

        taken = take() or self._wait_for(take, "a file lock", holders_of=lambda: _holders_of_lock(file))
        assert taken is not None, "there is no time-out"
        return taken[0]

    def _await_build(self, original: Callable[..., None], baton: FileBaton) -> None:
        path = os.path.abspath(baton.lock_file_path)
        if os.path.exists(path):
            self._wait_for(lambda: None if os.path.exists(path) else True, f"{BUILD_LOCK} {path}")

    def _await_keys(self, original: Callable[..., None], store: Any, keys: list[str], *timeout: Any) -> None:
        if not store.check(keys):
            limit = timeout[0] if timeout else store.timeout
            seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
            if not self._wait_for(lambda: store.check(keys) or None, _KEY, seconds):
                names = ", ".join(f"/{key}" for key in keys)
                raise DistStoreError(f"wait timeout after {round(seconds * 1000)}ms, keys: {names}")
        original(store, keys, *timeout)

    def _get_key(self, original: Callable[..., bytes], store: Store, key: str) -> bytes:
        store.wait([key])
        return original(store, key)

    def _make_acquire(self, original: None) -> property:
        """Return a property: each lock of multiprocessing has its `acquire` among its own attributes."""

        def acquire_of(lock: Any) -> Callable[..., bool]:
            def acquire(block: bool = True, timeout: float | None = None) -> bool:
                take = lock._semlock.acquire
                if not block or not self._host.is_rank_thread():
                    return bool(take(block, timeout))
                return bool(take(False) or self._wait_for(lambda: take(False) or None, _LOCK, timeout))

            return acquire

        return property(acquire_of, lambda lock, value: vars(lock).update(acquire=value))

    def _receive(self, original: Callable[..., Any], connection: Any, *arguments: Any) -> Any:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):
            self._wait_for(lambda: poll.poll(0) or None, _DATA)
        return original(connection, *arguments)

    def _read_socket(self, original: Callable[..., Any], reader: Any, buffer: Any) -> Any:
        link, poll = reader._sock, select.poll()
        is_wait = link is not None and link.gettimeout() != 0
        if is_wait and not getattr(link, "pending", int)():  # TLS may hold decrypted data that no poll sees
            poll.register(link.fileno(), select.POLLIN)
            if not poll.poll(0) and not self._wait_for(lambda: poll.poll(0) or None, _DATA, link.gettimeout()):
                raise TimeoutError("timed out")
        return original(reader, buffer)

    def _select(self, original: Callable[..., Any], selector: Any, timeout: float | None = None) -> Any:
        is_child = sys._getframe(2).f_globals.get("__name__") == "subprocess"
        if is_child and not self._are_processes:
            return original(selector, timeout)
        ready = original(selector, 0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._wait_for(lambda: original(selector, 0) or None, _DATA, timeout) or []

    def _await_child(self, original: Callable[..., Any], pid: int, options: int) -> Any:
        if options & os.WNOHANG:
            return original(pid, options)

        def look() -> Any:
            ended = original(pid, options | os.WNOHANG)
            return ended if ended[0] else None

        return look() or self._wait_for(look, "the end of a child process")


_LOCK = "a lock of multiprocessing"
_DATA = "data of another process"
_KEY = "a key of a store that is older than the run"


def _without_wait(function: str, operation: int) -> int | None:
    """Return the operation that takes the same lock without waiting; None if this one does not wait."""
    if function == "fcntl":
        return fcntl.F_SETLK if operation == fcntl.F_SETLKW else None
    waits = operation & (fcntl.LOCK_EX | fcntl.LOCK_SH) and not operation & fcntl.LOCK_NB
    return operation | fcntl.LOCK_NB if waits else None


def _holders_of_lock(file: Any) -> frozenset[int]:
    """Return the ids of the processes that hold a lock of a file, as far as the system tells."""
    end = f":{os.fstat(file if isinstance(file, int) else file.fileno()).st_ino}"
    with suppress(OSError, ValueError, IndexError), open("/proc/locks") as table:
        # "1: FLOCK ADVISORY WRITE 4615 fe:00:2245181 0 EOF"; "1: -> ..." waits for the lock
        rows = [line.split() for line in table if "->" not in line]
        return frozenset(int(row[4]) for row in rows if row[5].endswith(end))
    return frozenset()


def _is_in_import(frame: FrameType) -> bool:
    """True within an import, whose lock the other ranks may need: no rank lets others run there."""
    return any(each.f_code.co_filename.startswith("<frozen importlib") for each in frames_outwards(frame))


def _look_for(look: Callable[[], T | None], seconds: float) -> T | None:
    """Return what `look` returns, if that is not None within so many real seconds; else None."""
    end = monotonic() + seconds
    while (found := look()) is None and (left := end - monotonic()) > 0:
        sleep(min(left, _PAUSE_SECONDS))
    return found
