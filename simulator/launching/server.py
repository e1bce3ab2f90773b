"""A server of ranks: a Python process with a given hash seed that has loaded torch, and forks ranks of programs.

The coordinator (`servers.py`) sends `LoadModules` and `ForkProcesses`, and the server answers each. A rank that it
forks waits for a `RankStart` on its channel. By then the rank is an orphan, and so a child of the coordinator.
"""

import gc
import importlib
import linecache
import os
import pickle
import socket
import sys
import threading
import traceback
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from ddpsim.simulator.errors import InternalError, is_unexpected_error, make_internal_error
from ddpsim.simulator.imports import pause_garbage_collection
from ddpsim.simulator.rank_processes.channel import MessageChannel, PacketConnection, readable_files

FILES_OF_A_RANK = 6
"""A rank's channel, arena, output, errors, stack and file of `FirstUseAnnouncement`; a launcher has one more file."""

WHERE = "a server, from which ranks are forked"
"""The name of a server in messages about internal errors."""

MOST_FILES = 240
"""The most files that are sent with one message; the operating system allows 253."""


class LoadModules(NamedTuple):
    """Import modules for all ranks that are forked later. A file with the module search path comes with the message.

    The answer is a text: why ranks with these modules cannot be forked; "" if they can.
    """

    modules: tuple[str, ...]
    is_by_request: bool
    """True if the user has named the modules, so that problems with them are reported."""


class ForkProcesses(NamedTuple):
    """A request to fork processes. Files come with the message, equally many for each. Answered by `ForkResult`."""

    processes: int


class ForkResult(NamedTuple):
    """The ids of the processes that a server has forked."""

    pids: tuple[int, ...]
    error: int
    """The error number of the fork that failed; 0 if none did."""


class RankStart(NamedTuple):
    """The first message to a forked process: which rank it becomes, and the state of the coordinator's process."""

    rank: int
    config: dict[str, Any]
    """The fields of `ProcessConfig` without the announcement."""
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]


_OF_EACH_RANK = (
    *("numpy.random", "torch.distributed.nn.functional", "torch.utils.serialization", "torch.profiler._cupti_monitor"),
)
"""What numpy and torch import when it is first used, which nearly each rank does."""

_SEEDS = ("torch.random", "torch.cuda", "torch.cuda.random", "torch.mtia", "torch.xpu", "torch.xpu.random")


def read_search_path(file: int) -> list[str]:
    """Return the module search path in a file of `servers.write_search_path`; it may be longer than a message."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="surrogateescape").split("\0")


def run_server(number: int, caller: int) -> NoReturn:
    """Fork ranks for the process `caller`, at the other end of socket `number`, until that process ends."""
    try:
        is_caller_there = os.pidfd_open(caller)
        if os.getppid() != caller:  # the caller has ended already
            os._exit(0)
        with _CallerWatch(is_caller_there):
            import_common_modules()
        _RankServer(PacketConnection(socket.socket(fileno=number)), is_caller_there).serve_requests()
    except (EOFError, OSError):  # the caller has ended
        os._exit(0)
    except Exception as error:
        if not is_unexpected_error(error):
            raise
        print(make_internal_error(error, WHERE), file=sys.stderr, flush=True)
        os._exit(_import_simulator_module("rank_processes.rank_files").BROKEN_STATUS)


class _CallerWatch:
    """Ends this server if its caller ends while it is busy. Its thread ends before a fork, which is then safe."""

    def __init__(self, is_caller_there: int) -> None:
        self._files = is_caller_there, os.eventfd(0)
        self._thread = threading.Thread(target=self._exit_with_caller, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        os.eventfd_write(self._files[1], 1)
        self._thread.join()
        os.close(self._files[1])

    def _exit_with_caller(self) -> None:
        if self._files[0] in readable_files(self._files):
            os._exit(0)


def import_common_modules() -> None:
    """Import what all ranks need."""
    with pause_garbage_collection():
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        for name in ("rank_processes.rank_process", "launching.launcher"):
            _import_simulator_module(name)
        for name in _OF_EACH_RANK:
            with suppress(ImportError):  # an older torch lacks it
                importlib.import_module(name)
    _read_sources_of_seeding()
    _import_simulator_module("process_group.user_stores").store_names()


def _import_simulator_module(name: str) -> Any:
    """Import a module of the simulator that imports torch; late, so that `_CallerWatch` starts before."""
    return importlib.import_module(f"ddpsim.simulator.{name}")


class _RankServer:
    def __init__(self, line: PacketConnection, is_caller_there: int) -> None:
        self._line = line
        self._is_caller_there = is_caller_there
        self._changed: dict[str, str] = {}
        """The environment variables that modules named by the user have set."""

    def serve_requests(self) -> NoReturn:
        _import_simulator_module("rank_processes.own_process").clear_exit_handlers()
        while True:
            gc.collect()
            gc.freeze()  # garbage collection in the ranks then copies no shared page
            message, files = self._receive_request()
            if isinstance(message, LoadModules):
                with _CallerWatch(self._is_caller_there):
                    answer: Any = self._load_modules(message, read_search_path(files[0]))
            else:
                answer = self._fork_processes(message, files)
            for file in files:
                os.close(file)
            self._line.send(answer)

    def _receive_request(self) -> tuple[Any, list[int]]:
        """Wait for a message and its files. Raises EOFError if the caller has ended."""
        if self._line.fileno() not in readable_files([self._line, self._is_caller_there]):
            raise EOFError
        message, files = self._line.receive()
        if message is None:
            raise EOFError
        return message, files

    def _load_modules(self, request: LoadModules, path: list[str]) -> str:
        before = dict(os.environ)
        sys.path[:] = path
        problem = next((found for name in request.modules if (found := _import_for_preload(name))), "")
        stores = _import_simulator_module("process_group.user_stores")
        stores.store_names.cache_clear()
        stores.store_names()
        if request.is_by_request:
            self._changed.update({name: value for name, value in os.environ.items() if before.get(name) != value})
            return problem
        return ""

    def _fork_processes(self, request: ForkProcesses, files: list[int]) -> ForkResult:
        """Fork processes through a process in between, which ends at once: they become the coordinator's children."""
        reading, writing = os.pipe()
        try:
            between = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            return ForkResult((), error.errno or -1)
        if not between:
            os.close(reading)
            try:
                result: ForkResult | InternalError = self._fork_orphans(request.processes, files, writing)
            except BaseException as error:
                result = make_internal_error(error, WHERE)
            os.write(writing, pickle.dumps(result))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(between, 0)
        forked: ForkResult | InternalError = pickle.loads(data)
        if isinstance(forked, InternalError):
            raise forked
        return forked

    def _fork_orphans(self, count: int, files: list[int], writing: int) -> ForkResult:
        pids: list[int] = []
        of_each = len(files) // count
        for start in range(0, len(files), of_each):
            try:
                pid = os.fork()
            except OSError as error:
                return ForkResult(tuple(pids), error.errno or -1)
            if not pid:
                for file in (*files[:start], *files[start + of_each :], writing, self._is_caller_there):
                    os.close(file)
                self._line.close()
                _begin_process(files[start : start + of_each], self._changed)
            pids.append(pid)
        return ForkResult(tuple(pids), 0)


def _read_sources_of_seeding() -> None:
    """Read the source files that each rank would read: torch keeps the stack of a `manual_seed`, with its lines."""
    traceback.format_stack()
    of_ranks = [f"ddpsim.simulator.rank_processes.{name}" for name in ("rank_process", "own_process")]
    for name in (*_SEEDS, *of_ranks):
        if (module := sys.modules.get(name)) is not None:
            linecache.getlines(str(module.__file__))


def _import_for_preload(name: str) -> str:
    """Import a module; return why ranks that have loaded it cannot be forked, or "" if they can."""
    try:
        importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name)):
            return f"there is no module {name!r} to preload, expected one that the program can import: correct the name"
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{name} cannot be preloaded ({what}), expected a module that can be imported: leave --preload out"
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and not hasattr(torch.ops.ddpsim_gpu, "install"):  # virtual GPUs can be used then
        return (
            f"{name} initialises CUDA when it is imported, which no process that is forked afterwards can use, "
            "expected a module that leaves that to the program: do not preload it"
        )
    count = sum(map(_is_lost_by_fork, os.listdir("/proc/self/task"))) - 2  # without this thread and `_CallerWatch`
    if count > 0:
        return (
            f"{name} starts {count} thread{'s' * (count > 1)} when it is imported, which no process that is forked "
            "afterwards has, expected a module that starts none: do not preload it"
        )
    return ""


def _is_lost_by_fork(thread: str) -> bool:
    """Return whether a fork lacks a thread of this process; jemalloc, which pyarrow contains, starts its own again."""
    with open(f"/proc/self/task/{thread}/comm") as file:
        return file.read().strip() != "jemalloc_bg_thd"


def _begin_process(files: list[int], changed: dict[str, str]) -> NoReturn:
    """Wait for `RankStart` in a new fork, and then become a rank or a launcher."""
    try:
        _become_rank_or_launcher(files, changed)
    except BaseException as error:  # an internal error: `main` handles those of a program
        rank_files = _import_simulator_module("rank_processes.rank_files")
        rank_files.exit_with_internal_error(files[4], error, "the process of a rank, before its program began")
    finally:
        os._exit(1)


def _become_rank_or_launcher(files: list[int], changed: dict[str, str]) -> None:
    names = ("rank_processes.process_config", "rank_processes.parcels", "rank_processes.rank_files", "hosts")
    configs, parcels, rank_files, hosts = map(_import_simulator_module, names)
    channel = MessageChannel(socket.socket(fileno=files[0]))
    try:
        birth: RankStart = channel.receive()
    except EOFError:  # the coordinator has closed the channel
        os._exit(0)
    sys.modules["__main__"] = ModuleType("__main__")
    sys.path[:] = birth.path
    os.environ.clear()
    os.environ.update({**changed, **birth.environment})
    with suppress(OSError):  # the folder is gone, which the program notices
        os.chdir(birth.folder)
    announcement = _import_simulator_module("virtual_gpus.announcement").FirstUseAnnouncement(files[5])
    config = configs.ProcessConfig(**birth.config, announcement=announcement)
    arena = parcels.SharedArena(file=files[1])
    for file in (files[1], files[5]):
        os.close(file)
    rank_config = configs.RankConfig(birth.rank, config, channel, arena, rank_files.RankFiles(*files[2:5]))
    if arguments := hosts.launcher_arguments(config.start.launcher, rank_config.host):
        config = config._replace(program=config.program.with_arguments_before(arguments))
        rank_config = rank_config._replace(common=config)
    if len(files) == FILES_OF_A_RANK:
        _import_simulator_module("rank_processes.rank_process").run_rank_process(rank_config)
    line = PacketConnection(socket.socket(fileno=files[6]))
    _import_simulator_module("launching.launcher").run_launcher(rank_config, line)
