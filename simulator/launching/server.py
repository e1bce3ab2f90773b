"""A server of ranks: a Python with a hash seed of its own that has torch loaded, and forks ranks of programs.

Whoever starts it (`servers.py`) sends `Load` and `Fork`, each of which is answered. A rank that it forks waits at its
channel for its `Birth`; by then it is an orphan, and so the child of the coordinator, as if that had forked it.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import socket
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from ddpsim.simulator.errors import InternalError, internal_error, is_unexpected
from ddpsim.simulator.imports import without_collections

FILES_OF_A_RANK = 6
"""Its channel, arena, output, errors and stack, and where it is noted what was said once for all; a launcher has one
more, its line."""

WHERE = "a server, from which ranks are forked"
"""Names it in reports of our own errors."""

MOST_FILES = 240
"""The system sends no more than 253 at a time."""


class Load(NamedTuple):
    """Import modules, for all ranks that are forked from now on. A file with the path to find them on comes with it."""

    modules: tuple[str, ...]
    is_by_request: bool
    """The caller has named them: what cannot be had, or forked, is told."""


class Loaded(NamedTuple):
    """Done."""

    problem: str
    """What speaks against it; "" for nothing."""


class Fork(NamedTuple):
    """Fork processes. Their files come with it, so many for each."""

    processes: int


class Forked(NamedTuple):
    """Their numbers."""

    pids: tuple[int, ...]
    error: int
    """Why there are no more, as `errno` has it; 0 if these are all."""


class Birth(NamedTuple):
    """What a process is told first."""

    rank: int
    config: dict[str, Any]
    """All but the announcement."""
    environment: dict[str, str]
    """The caller's, as are the others."""
    folder: str
    path: tuple[str, ...]


def path_in(file: int) -> list[str]:
    """A module search path as `file_of` of servers.py has written it: it may be longer than a message."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="surrogateescape").split("\0")


def main(number: int, caller: int) -> NoReturn:
    """Serve the process `caller`, which has the other end of a socket, as long as it is there."""
    try:
        is_caller_there = os.pidfd_open(caller)
        if os.getppid() != caller:  # it has ended in between
            os._exit(0)
        with _Watch(is_caller_there):
            _load_what_all_ranks_need()
        _Server(socket.socket(fileno=number), is_caller_there).serve()
    except (EOFError, OSError):  # nobody is there
        os._exit(0)
    except Exception as error:
        if not is_unexpected(error):
            raise
        print(internal_error(error, WHERE), file=sys.stderr, flush=True)
        os._exit(_part("rank_processes.rank_files").BROKEN_STATUS)


class _Watch:
    """Ends this process if the caller ends while it is busy. No thread is left behind, so that it can fork."""

    def __init__(self, is_caller_there: int) -> None:
        self._files = is_caller_there, os.eventfd(0)
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        os.eventfd_write(self._files[1], 1)
        self._thread.join()
        os.close(self._files[1])

    def _look(self) -> None:
        if self._files[0] in select.select(self._files, [], [])[0]:
            os._exit(0)


def _load_what_all_ranks_need() -> None:
    with without_collections():
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        for name in ("rank_processes.rank_process", "launching.launcher"):
            _part(name)


def _part(name: str) -> Any:
    """A module of the simulator that imports torch: this one does not, so that it can watch meanwhile."""
    return importlib.import_module(f"ddpsim.simulator.{name}")


class _Server:
    def __init__(self, line: socket.socket, is_caller_there: int) -> None:
        self._line = line
        self._is_caller_there = is_caller_there
        self._changed: dict[str, str] = {}
        """Variables of the environment that modules have set which were loaded by request."""

    def serve(self) -> NoReturn:
        while True:
            gc.collect()
            gc.freeze()  # collections in the ranks then touch no page that they share
            message, files = self._receive()
            if isinstance(message, Load):
                with _Watch(self._is_caller_there):
                    answer: NamedTuple = Loaded(self._load(message, path_in(files[0])))
            else:
                answer = self._fork(message, files)
            for file in files:
                os.close(file)
            self._line.sendall(pickle.dumps(answer))

    def _receive(self) -> tuple[Any, list[int]]:
        if self._line.fileno() not in select.select([self._line.fileno(), self._is_caller_there], [], [])[0]:
            raise EOFError
        data, files, _, _ = socket.recv_fds(self._line, 1 << 16, MOST_FILES)
        if not data:
            raise EOFError
        return pickle.loads(data), list(files)

    # --- loading ------------------------------------------------------------------------------------------------------

    def _load(self, request: Load, path: list[str]) -> str:
        before = dict(os.environ)
        sys.path[:] = path
        problem = next((found for name in request.modules if (found := _problem_of(name))), "")
        if request.is_by_request:
            self._changed.update({name: value for name, value in os.environ.items() if before.get(name) != value})
            return problem
        return ""

    # --- forking ------------------------------------------------------------------------------------------------------

    def _fork(self, request: Fork, files: list[int]) -> Forked:
        reading, writing = os.pipe()
        try:
            between = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            return Forked((), error.errno or -1)
        if not between:
            os.close(reading)
            try:
                told: Forked | InternalError = self._fork_orphans(request.processes, files, writing)
            except BaseException as error:
                told = internal_error(error, WHERE)
            os.write(writing, pickle.dumps(told))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(between, 0)
        forked: Forked | InternalError = pickle.loads(data)
        if isinstance(forked, InternalError):
            raise forked
        return forked

    def _fork_orphans(self, count: int, files: list[int], writing: int) -> Forked:
        pids: list[int] = []
        of_each = len(files) // count
        for start in range(0, len(files), of_each):
            try:
                pid = os.fork()
            except OSError as error:
                return Forked(tuple(pids), error.errno or -1)
            if not pid:
                for file in (*files[:start], *files[start + of_each :], writing, self._is_caller_there):
                    os.close(file)
                self._line.close()
                _begin(files[start : start + of_each], self._changed)
            pids.append(pid)
        return Forked(tuple(pids), 0)


def _problem_of(name: str) -> str:
    """Import a module: what speaks against forking ranks that have it, or ""."""
    try:
        importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name)):
            return f"there is no module {name!r} to preload, expected one that the program can import: correct the name"
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{name} cannot be preloaded ({what}), expected a module that can be imported: leave --preload out"
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return (
            f"{name} initialises CUDA when it is imported, which no process that is forked afterwards can use, "
            "expected a module that leaves that to the program: do not preload it"
        )
    count = len(os.listdir("/proc/self/task")) - 2  # but for this one and its watch
    if count > 0:
        return (
            f"{name} starts {count} thread{'s' * (count > 1)} when it is imported, which no process that is forked "
            "afterwards has, expected a module that starts none: do not preload it"
        )
    return ""


def _begin(files: list[int], changed: dict[str, str]) -> NoReturn:
    """Be a rank, or a launcher, as soon as the coordinator says which."""
    try:
        _become(files, changed)
    except BaseException as error:  # an error of ours: those of a program stay in `main`
        _part("rank_processes.rank_files").end_broken(
            files[4], error, "the process of a rank, before its program began"
        )
    finally:
        os._exit(1)


def _become(files: list[int], changed: dict[str, str]) -> None:
    names = ("channel", "process_config", "parcels", "rank_files")
    channel_of, configs, parcels, rank_files = [_part(f"rank_processes.{name}") for name in names]
    channel = channel_of.Channel(socket.socket(fileno=files[0]))
    try:
        birth: Birth = channel.receive()
    except EOFError:  # nobody needs this process
        os._exit(0)
    sys.modules["__main__"] = ModuleType("__main__")
    sys.path[:] = birth.path
    os.environ.clear()
    os.environ.update({**changed, **birth.environment})
    with suppress(OSError):  # it is gone, as the program will see
        os.chdir(birth.folder)
    announcement = _part("virtual_gpus.announcement").Announcement(files[5])
    config = configs.ProcessConfig(**birth.config, announcement=announcement)
    arena = parcels.Arena(file=files[1])
    for file in (files[1], files[5]):
        os.close(file)
    rank_config = configs.RankConfig(birth.rank, config, channel, arena, rank_files.Files(tuple(files[2:5])))
    if len(files) == FILES_OF_A_RANK:
        _part("rank_processes.rank_process").main(rank_config)
    line = _part("launching.launcher_line").Line(socket.socket(fileno=files[6]))
    _part("launching.launcher").main(rank_config, line)
