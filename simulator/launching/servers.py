"""Starts and keeps the servers that fork the ranks of programs; `server.py` runs in the servers.

Python reads its hash seed at its start, and forks share it. So servers have different seeds, and neighbouring ranks
come from different servers: the order of a set of strings differs between ranks, as under torchrun, but not between
runs.

This module does not import torch: a command starts its servers first, and imports torch at the same time as they do.
"""

import atexit
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from ddpsim.simulator.choices import HASH_SEEDS
from ddpsim.simulator.errors import InternalError, UsageError
from ddpsim.simulator.launching.program_files import may_tell_hash_seed
from ddpsim.simulator.launching.script import Script, with_variable
from ddpsim.simulator.launching.server import ForkProcesses, LoadModules, import_common_modules, run_server
from ddpsim.simulator.rank_processes.channel import PacketConnection
from ddpsim.simulator.rank_processes.rank_files import BROKEN_STATUS

_MAIN = """
import os, sys
sys.path[:] = os.pread({path}, os.fstat({path}).st_size, 0).decode(errors="surrogateescape").split("\\0")
os.close({path})
from ddpsim.simulator.launching.server import run_server
run_server({file}, {caller})
"""


class ServerGone(UsageError):
    """A server that forks ranks has ended unexpectedly."""

    was_ready = False
    """True if the server was ready before it ended, so that a new server may succeed."""


class ServerKey(NamedTuple):
    """The properties of a server that forks ranks; runs that need equal properties share the server."""

    hash_seed: int
    preload: tuple[str, ...] = ()
    folder: str = ""
    """The folder in which the modules to load are searched first; "" if there are none."""
    environment: tuple[tuple[str, str], ...] = ()
    """The environment variables of a rank, if the modules to load read them."""

    @property
    def is_default(self) -> bool:
        """True for a server that runs with default options use."""
        return self.hash_seed in HASH_SEEDS and not self.preload


def server_keys(program: Script, hash_seeds: Sequence[int], preload: Sequence[str]) -> list[ServerKey]:
    """Return the properties of the servers that a program needs; its ranks are distributed over them in turn."""
    folder = program.folder if preload else ""
    if len(hash_seeds) > 1 and not preload and not may_tell_hash_seed(program):
        hash_seeds = hash_seeds[:1]
    keys = [ServerKey(seed, tuple(preload), folder) for seed in dict.fromkeys(hash_seeds)]
    environments = program.rank_environments
    return [keys[rank % len(keys)]._replace(environment=each) for rank, each in enumerate(environments)] or keys


_THREADS = "OMP_NUM_THREADS"

_APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
"""Options of Popen that put servers into another process group, so that Ctrl-C does not reach the servers."""


class ServerProcess:
    """One server, a process that forks ranks. It loads torch after the constructor has returned."""

    def __init__(self, key: ServerKey, forked: Callable[[], object] | None = None) -> None:
        """Start the process, or a fork that calls `forked`. Raises OSError if there is no process or file left."""
        self._key = key
        self._awaited = 0
        self._line, theirs = PacketConnection.pair()
        self._errors = os.memfd_create("errors")
        self._has_dynamo = False
        self._was_ready = False
        try:
            self._process: subprocess.Popen[bytes] | _Fork = (
                self._start_python(theirs.fileno()) if forked is None else self._fork(theirs.fileno(), forked)
            )
        except OSError:
            self._line.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
        if key.preload:
            self._request_load(key.preload, [key.folder, *sys.path], is_by_request=True)

    def _start_python(self, line: int) -> "subprocess.Popen[bytes]":
        path = write_search_path(sys.path)
        try:
            return subprocess.Popen(
                [sys.executable, *_python_flags(), "-c", _MAIN.format(path=path, file=line, caller=os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[line, path],
                env={
                    **os.environ,
                    "PYTHONHASHSEED": str(self._key.hash_seed),
                    _THREADS: "1",
                    **dict(self._key.environment),
                },
                **_APART,
            )
        finally:
            os.close(path)

    def _fork(self, line: int, forked: Callable[[], object]) -> "_Fork":
        """Fork a server from this process, which has imported torch and runs nothing else."""
        caller = os.getpid()
        if pid := os.fork():
            return _Fork(pid)
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            for file, number in ((nothing, 0), (nothing, 1), (self._errors, 2)):
                os.dup2(file, number)
            forked()  # first: it closes files of other servers
            os.closerange(3, line)
            os.closerange(line + 1, os.sysconf("SC_OPEN_MAX"))
            os.environ.update({_THREADS: "1", **dict(self._key.environment)})
            run_server(line, caller)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(1)

    @property
    def is_alive(self) -> bool:
        """True while the server's process runs."""
        return self._process.poll() is None

    def load_dynamo(self) -> None:
        """Load torch's compiler, which takes a second, once for all ranks."""
        if not self._has_dynamo:
            self._has_dynamo = True
            self._request_load(("torch._dynamo",), sys.path, is_by_request=False)

    def await_ready(self) -> None:
        """Wait until the server has loaded all modules. Raises UsageError if it cannot load them."""
        while self._awaited:
            problem = self.receive_answer()
            self._awaited -= 1
            if problem:
                raise UsageError(problem)
        self._was_ready = self._was_ready or self.is_alive

    def ask_to_fork(self, files: Sequence[Sequence[int]]) -> None:
        """Ask the server to fork processes; `files` has the files of each process."""
        try:
            self._line.send(ForkProcesses(len(files)), [file for each in files for file in each])
        except ConnectionError:  # the server is gone, which `receive_answer` reports
            return
        except OSError:
            self._raise_server_gone()

    def close(self) -> None:
        """Kill the server; ranks that it has forked continue."""
        self._process.kill()
        self._process.wait()
        self._line.close()
        os.close(self._errors)

    def release_after_fork(self) -> None:
        """Forget the server, in a fork of the process that started it."""
        self._line.close()
        os.close(self._errors)
        self._process.returncode = 0

    def _request_load(self, modules: tuple[str, ...], path: Sequence[str], *, is_by_request: bool) -> None:
        file = write_search_path(path)
        with suppress(OSError):  # the server is gone, which the next receive reports
            self._line.send(LoadModules(modules, is_by_request), [file])
        os.close(file)
        self._awaited += 1

    def receive_answer(self) -> Any:
        """Wait for the answer to the oldest unanswered message. Raises ServerGone or InternalError if it has ended."""
        try:
            answer, _ = self._line.receive()
        except ConnectionError:
            answer = None
        if answer is None:
            self._raise_server_gone()
        return answer

    def _raise_server_gone(self) -> NoReturn:
        text = os.pread(self._errors, 1 << 16, 0).decode(errors="replace").strip()
        status = self._process.wait()
        if status == BROKEN_STATUS:
            raise InternalError(text)
        lines = text.splitlines()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        said = lines[-1] if lines else how
        gone = ServerGone(
            f"a Python process for ranks could not load torch, or has ended ({said}), expected enough memory, files "
            "and threads for it: raise the limits of this shell (ulimit -a), or free memory"
        )
        gone.was_ready = self._was_ready
        raise gone


def _python_flags() -> list[str]:
    """Return the options of this Python, without those that ignore the environment: the hash seed is set there."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [flag for flag in flags if flag not in ("-E", "-I")]


def write_search_path(path: Sequence[str]) -> int:
    """Write a module search path into a file in memory, because it may be too long for an argument."""
    file = os.memfd_create("path")
    with open(file, "wb", closefd=False) as stream:
        stream.write("\0".join(each for each in path if isinstance(each, str)).encode(errors="surrogateescape"))
    return file


@contextmanager
def imports_for_forks() -> Iterator[None]:
    """Let libraries that are loaded in the `with` block start no threads; then import what all ranks need."""
    with with_variable(_THREADS, "1"):
        yield
        import_common_modules()


class _Fork:
    """A forked process, with the methods of Popen that servers need."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit status if the process has ended, else None."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self._pid, options)
            except ChildProcessError:  # another wait has taken the status
                pid, status = self._pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        return self.poll(0) or 0

    def kill(self) -> None:
        """Kill the process."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)


class ServerPool:
    """The servers (processes that fork ranks) of this process, which later runs use again."""

    def __init__(self) -> None:
        self._servers: dict[ServerKey, ServerProcess] = {}
        self._owner = 0
        self._to_fork: tuple[ServerKey, bool] | None = None
        self.own_hash_seed: int | None = None
        """The hash seed of a process that serves commands."""
        self.was_prepared = False
        """True if this process runs a program, and may fork a server from itself."""

    def prepare_fork(self, key: ServerKey, *, wants_dynamo: bool) -> None:
        """Let this process, which has the hash seed of `key`, fork that server once it has imported torch."""
        self._to_fork, self.was_prepared = (key, wants_dynamo), True

    def fork_prepared_server(self) -> None:
        """Fork the server for which this process was prepared, and which runs will find; nothing if it cannot be."""
        if self._to_fork is None:
            return
        (key, wants_dynamo), self._to_fork = self._to_fork, None
        torch: Any = sys.modules["torch"]
        if len(os.listdir("/proc/self/task")) == 1 and not torch.cuda.is_initialized():
            self._reset_after_fork()
            gc.freeze()  # garbage collection in the server then copies no shared page
            with suppress(OSError):  # the run then starts one, or reports that the system starts none
                self._servers[key] = ServerProcess(key, self._forget_all)
                if wants_dynamo:
                    self._servers[key].load_dynamo()
        given = os.environ.get(_THREADS, "")
        torch.set_num_threads(int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0)))

    def _forget_all(self) -> None:
        """Forget the servers of the process that this one is a fork of."""
        atexit.unregister(self.close)
        for server in self._servers.values():
            server.release_after_fork()

    def start_servers(self, keys: Sequence[ServerKey], *, wants_dynamo: bool) -> list[ServerProcess]:
        """Return servers with these keys; missing ones start in parallel. Raises UsageError if one cannot start."""
        self._reset_after_fork()
        for key in [key for key in self._servers if key not in keys and not key.is_default]:
            self._servers.pop(key).close()  # servers take memory, and a session may need many kinds
        try:
            servers = [self._get_or_start_server(key) for key in keys]
        except OSError as error:
            raise UsageError(
                f"the system starts no Python to fork ranks from ({error.strerror}), expected room for "
                f"{len(keys)}: raise the limits of processes and files (ulimit -u, -n)"
            ) from None
        for server in servers if wants_dynamo else ():
            server.load_dynamo()
        return servers

    @contextmanager
    def use_servers(self, keys: Sequence[ServerKey], *, wants_dynamo: bool) -> Iterator[list[ServerProcess]]:
        """Yield servers that are ready. If the `with` block raises, they are ended, except after an OSError, which is
        not their fault."""
        servers = self.start_servers(keys, wants_dynamo=wants_dynamo)
        try:
            for server in servers:
                server.await_ready()
            yield servers
        except OSError:
            raise
        except BaseException:
            for key in keys:
                self._servers.pop(key).close()
            raise

    def close(self) -> None:
        """End all servers."""
        self._reset_after_fork()
        while self._servers:
            self._servers.popitem()[1].close()

    def _get_or_start_server(self, key: ServerKey) -> ServerProcess:
        if key in self._servers and not self._servers[key].is_alive:
            self._servers.pop(key).close()
        if key not in self._servers:
            self._servers[key] = ServerProcess(key)
        return self._servers[key]

    def _reset_after_fork(self) -> None:
        if self._owner != os.getpid():
            for server in self._servers.values():
                server.release_after_fork()
            self._servers.clear()
            self._owner = os.getpid()
            atexit.register(self.close)


STANDING = ServerPool()
"""The servers of this process, kept between runs because Python and torch take a second to start."""
