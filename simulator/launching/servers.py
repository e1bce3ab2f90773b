"""The servers that this process has started, from which the ranks of programs are forked; `server.py` is their side.

A hash seed is given to Python when it starts, and forks share it. So there are servers of different seeds, and
neighbouring ranks come from different ones: what depends on the order of a set of strings differs between ranks, as
under torchrun, and is yet the same in each run.

No torch here: a command starts its servers first, and imports torch beside them.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ddpsim.simulator.choices import HASH_SEEDS
from ddpsim.simulator.errors import InternalError, UsageError
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.launching.server import Fork, Forked, Load
from ddpsim.simulator.rank_processes.rank_files import BROKEN_STATUS

_MAIN = """
import os, sys
sys.path[:] = os.pread({path}, os.fstat({path}).st_size, 0).decode(errors="surrogateescape").split("\\0")
os.close({path})
from ddpsim.simulator.launching.server import main
main({file}, {caller})
"""


class ServerGone(UsageError):
    """A server has ended; `was_ready` if it had served, so that another one may."""

    was_ready = False


class ServerKey(NamedTuple):
    """What servers are told apart by."""

    hash_seed: int
    preload: tuple[str, ...] = ()
    """Modules that the caller wants loaded."""
    folder: str = ""
    """Where these are looked for first; "" without them."""

    @property
    def is_usual(self) -> bool:
        """One of those that runs have unless somebody says otherwise."""
        return self.hash_seed in HASH_SEEDS and not self.preload


def server_keys(program: Script, hash_seeds: Sequence[int], preload: Sequence[str]) -> list[ServerKey]:
    """The servers that the ranks of a program come from, in turn."""
    folder = program.folder if preload else ""
    return [ServerKey(seed, tuple(preload), folder) for seed in dict.fromkeys(hash_seeds)]


_APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
"""Ctrl-C is the caller's."""


class Server:
    """One server. It has not loaded everything yet when it is made."""

    def __init__(self, key: ServerKey) -> None:
        """Start it. Raises OSError if the system gives no process or no files."""
        self._key = key
        self._awaited = 0
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = os.memfd_create("errors")
        self._has_dynamo = False
        self._was_ready = False
        path = file_of(sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_flags(), "-c", _MAIN.format(path=path, file=theirs.fileno(), caller=os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno(), path],
                env={**os.environ, "PYTHONHASHSEED": str(key.hash_seed), "OMP_NUM_THREADS": "1"},
                **_APART,
            )
        except OSError:
            self._line.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(path)
        if key.preload:
            self._load(key.preload, [key.folder, *sys.path], is_by_request=True)

    @property
    def is_there(self) -> bool:
        """False if it has ended."""
        return self._process.poll() is None

    def want_dynamo(self) -> None:
        """torch's compiler, which takes a second to load, is to be loaded once for all ranks."""
        if not self._has_dynamo:
            self._has_dynamo = True
            self._load(("torch._dynamo",), sys.path, is_by_request=False)

    def settle(self) -> None:
        """Wait until it has loaded everything. Raises UsageError if it cannot."""
        while self._awaited:
            answer = self._receive()
            self._awaited -= 1
            if answer.problem:
                raise UsageError(answer.problem)
        self._was_ready = self._was_ready or self.is_there

    def ask_to_fork(self, files: Sequence[Sequence[int]]) -> None:
        """Ask for a process for each of these, which are the files that it is given."""
        message = pickle.dumps(Fork(len(files)))
        try:
            socket.send_fds(self._line, [message], [file for each in files for file in each])
        except ConnectionError:  # it is gone, as `forked` will tell
            return
        except OSError:
            self._is_gone()

    def forked(self) -> Forked:
        """What came of that."""
        answer: Forked = self._receive()
        return answer

    def close(self) -> None:
        """End it. The ranks that it has forked are not its own."""
        self._process.kill()
        self._process.wait()
        self._line.close()
        os.close(self._errors)

    def let_go(self) -> None:
        """In a process that is forked from the one that started it: it is not ours."""
        self._line.close()
        os.close(self._errors)
        self._process.returncode = 0

    def _load(self, modules: tuple[str, ...], path: Sequence[str], *, is_by_request: bool) -> None:
        file = file_of(path)
        with suppress(OSError):  # it is gone, as we shall see
            socket.send_fds(self._line, [pickle.dumps(Load(modules, is_by_request))], [file])
        os.close(file)
        self._awaited += 1

    def _receive(self) -> Any:
        try:
            data = self._line.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._is_gone()
        return pickle.loads(data)

    def _is_gone(self) -> None:
        text = os.pread(self._errors, 1 << 16, 0).decode(errors="replace").strip()
        status = self._process.wait()
        if status == BROKEN_STATUS:
            raise InternalError(text)
        lines = text.splitlines()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        said = lines[-1] if lines else how
        gone = ServerGone(
            f"a Python that ranks are to be forked from could not load torch, or has ended ({said}), expected it to "
            "have the memory, files and threads it needs: raise the limits of this shell (ulimit -a), or free memory"
        )
        gone.was_ready = self._was_ready
        raise gone


def _flags() -> list[str]:
    """Those of this Python, but for what keeps it from reading the environment, which has the seed."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [flag for flag in flags if flag not in ("-E", "-I")]


def file_of(path: Sequence[str]) -> int:
    """A file in memory with a module search path, which grows with each program that a long session has run."""
    file = os.memfd_create("path")
    with open(file, "wb", closefd=False) as stream:
        stream.write("\0".join(each for each in path if isinstance(each, str)).encode(errors="surrogateescape"))
    return file


class Servers:
    """Those of one process, by what they are. They stay for its runs to come."""

    def __init__(self) -> None:
        self._servers: dict[ServerKey, Server] = {}
        self._owner = 0

    def start(self, keys: Sequence[ServerKey], *, wants_dynamo: bool) -> list[Server]:
        """The servers of these keys; those that are not there are started, beside each other.

        Raises UsageError if the system gives no process for one.
        """
        self._be_of_this_process()
        for key in [key for key in self._servers if key not in keys and not key.is_usual]:
            self._servers.pop(key).close()  # each takes memory, and a session may come to know many
        try:
            servers = [self._server(key) for key in keys]
        except OSError as error:
            raise UsageError(
                f"the system starts no Python to fork ranks from ({error.strerror}), expected room for "
                f"{len(keys)}: raise the limits of processes and files (ulimit -u, -n)"
            ) from None
        for server in servers:
            if wants_dynamo:
                server.want_dynamo()
        return servers

    @contextmanager
    def in_use(self, keys: Sequence[ServerKey], *, wants_dynamo: bool) -> Iterator[list[Server]]:
        """Servers that are ready. They do not stay if they break, or what they are asked for is broken off.

        An OSError is of the caller's own system, and none of theirs.
        """
        servers = self.start(keys, wants_dynamo=wants_dynamo)
        try:
            for server in servers:
                server.settle()
            yield servers
        except OSError:
            raise
        except BaseException:
            for key in keys:
                self._servers.pop(key).close()
            raise

    def close(self) -> None:
        """End all of them."""
        self._be_of_this_process()
        while self._servers:
            self._servers.popitem()[1].close()

    def _server(self, key: ServerKey) -> Server:
        server = self._servers.get(key)
        if server is not None and not server.is_there:
            self._servers.pop(key).close()
            server = None
        if server is None:
            server = self._servers[key] = Server(key)
        return server

    def _be_of_this_process(self) -> None:
        if self._owner != os.getpid():
            for server in self._servers.values():
                server.let_go()
            self._servers.clear()
            self._owner = os.getpid()
            atexit.register(self.close)


STANDING = Servers()
"""They belong to the process, as the lock of one_run.py does: Python and torch take a second to start."""
