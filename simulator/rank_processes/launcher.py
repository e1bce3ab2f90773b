"""A program that starts its ranks itself, by `mp.spawn` or `Process.start`: what runs in its own process.

The program runs once, as its own launcher and as Python runs it. What multiprocessing would start becomes a rank: it is
forked here, as a process that waits until the coordinator lets it begin, and torch's and Python's own code above it
(`mp.spawn`, `ProcessContext.join`, `Process.join`) stays as it is. A rank of the start method "fork" has what the
launcher has; one of "spawn" imports the program again under the name `__mp_main__`, and is sent its function pickled.

Processes are ranks as long as they look like it: the workers of `mp.spawn`, or processes of one function that are
given their numbers, 0, 1, 2 and so on, among their arguments. Others are started as ever.
"""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import select
import site
import socket
import struct
import sys
import sysconfig
import traceback
from collections.abc import Callable
from multiprocessing import context, popen_spawn_posix, process, reduction, spawn, util
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.multiprocessing.spawn import _wrap as _worker_of_spawn

from ddpsim.simulator.rank_processes import rank_process
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.program import environment
from ddpsim.simulator.rank_processes.rank_files import Files
from ddpsim.simulator.rank_processes.rank_process import Setting, Terms
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.outcome import Raised

_CODE = struct.Struct("<i")

# --- what it says to the coordinator ----------------------------------------------------------------------------------


class Started(NamedTuple):
    """A rank waits to begin. Its files come with it, in the order of `_start`."""

    pid: int


class Begin(NamedTuple):
    """All ranks are started, and somebody waits for them."""


class MakesGroup(NamedTuple):
    """The program makes a group itself, without starting a rank: it is none that launches."""


class StartsAgain(NamedTuple):
    """The program starts ranks once more, after those that have begun."""


class Done(NamedTuple):
    """The program is over."""

    raised: Raised | None


class Line:
    """Packets between the launcher and the coordinator."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """The number of its file."""
        return self._end.fileno()

    @staticmethod
    def pair() -> tuple[Line, Line]:
        """Two ends."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Line(first), Line(second)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(self, message: NamedTuple, files: list[int]) -> None:
        """Send a message with files."""
        socket.send_fds(self._end, [pickle.dumps(message)], files)

    def receive(self) -> tuple[Any, list[int]]:
        """A message with its files; None if the other end is closed."""
        data, files, _, _ = socket.recv_fds(self._end, 1 << 17, 8)
        return (pickle.loads(data) if data else None), list(files)


# --- the launcher -----------------------------------------------------------------------------------------------------


def main(setting: Setting, line: Line) -> NoReturn:
    """Run the program as its own launcher, and end the process."""
    raised = None
    try:
        rank_process.make_own_process(setting)
        launcher = Launcher(line, setting.terms)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        try:
            with launcher:
                setting.terms.program(0)
                util._exit_function()  # type: ignore[attr-defined]
        except BaseException as error:
            raised = outcome.told(0, error)
            raised = raised._replace(traceback=raised.traceback[-(1 << 15) :])
            if not launcher.has_begun:
                traceback.print_exc()
        rank_process.flush()
        line.send(Done(raised), [])
    finally:
        rank_process.flush()
        os._exit(0)


class Launcher:
    """Takes the place of what starts processes."""

    def __init__(self, line: Line, terms: Terms) -> None:
        self.line = line
        self.has_begun = False
        self._pid = os.getpid()
        self.terms = terms
        self._modules = frozenset(sys.modules)
        self._target: Any = None
        self._ranks: list[RankPopen] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for kind in (context.ForkProcess, context.SpawnProcess, context.ForkServerProcess):
            self._replace(kind, "_Popen", staticmethod(self._popen(kind)))
        self._replace(multiprocessing.connection, "wait", self._waiter(multiprocessing.connection.wait))
        for owner, name in (
            (distributed_c10d, "_new_process_group_helper"),
            (sys.modules["torch.distributed.rendezvous"], "_create_c10d_store"),
            (dist, "TCPStore"),
        ):
            self._replace(owner, name, self._group_maker(getattr(owner, name)))
        if (gpus := self.terms.gpus) is not None:  # to count them is all that a launcher does; ranks are given theirs
            self._replace(torch.cuda, "is_available", lambda: gpus > 0)
            self._replace(torch.cuda, "device_count", lambda: gpus)

    def __exit__(self, *error: object) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._originals.append((owner, name, vars(owner)[name]))
        setattr(owner, name, replacement)

    def begin(self) -> None:
        """Somebody waits for the ranks: no more will come."""
        if self._ranks and not self.has_begun:
            self.has_begun = True
            self.line.send(Begin(), [])

    def own_environment(self) -> None:
        """In a rank: take away what torchrun would have set, unless the program has set it otherwise."""
        for name, value in environment(0, self.terms.world_size).items():
            if os.environ.get(name) == value and name != "OMP_NUM_THREADS":
                del os.environ[name]

    def forget_modules(self) -> None:
        """In a rank that begins anew: let it import the project's modules itself."""
        places = (sysconfig.get_path("stdlib"), *site.getsitepackages(), sysconfig.get_path("purelib"))
        for name in [name for name in sys.modules if name not in self._modules]:
            file = getattr(sys.modules[name], "__file__", None)
            if file and file.endswith(".py") and not file.startswith(places):
                del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")

    # --- what it replaces ---------------------------------------------------------------------------------------------

    def _popen(self, kind: Any) -> Callable[[Any], Any]:
        original = vars(kind)["_Popen"].__func__

        def popen(worker: Any) -> Any:
            if os.getpid() != self._pid or not self._is_rank(worker):
                return original(worker)
            self._target = worker._target
            rank = RankPopen(self, worker, len(self._ranks), is_forked=kind is context.ForkProcess)
            self._ranks.append(rank)
            return rank

        return popen

    def _is_rank(self, worker: Any) -> bool:
        if worker._target is None:
            return False
        if self.has_begun and worker._target is self._target:
            self.line.send(StartsAgain(), [])
            os._exit(0)
        if self.has_begun:
            return False
        number = len(self._ranks)
        if worker._target is _worker_of_spawn:
            return bool(worker._args[1] == number)
        if (number and worker._target is not self._target) or worker._target.__module__.startswith(("torch.", "multi")):
            return False
        given = (*worker._args, *worker._kwargs.values())
        return any(type(value) is int and value == number for value in given)

    def _waiter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(object_list: Any, timeout: float | None = None) -> Any:
            waited = list(object_list)
            if os.getpid() == self._pid and any(rank.sentinel in waited for rank in self._ranks):
                self.begin()
            return original(waited, timeout)

        return wait

    def _group_maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For what a program calls that makes a group itself; it would wait here for ranks that do not run."""

        def make(*arguments: Any, **options: Any) -> Any:
            if os.getpid() == self._pid and not self._ranks:
                self.line.send(MakesGroup(), [])
                os._exit(0)
            return original(*arguments, **options)

        return make


class RankPopen:
    """Stands for the process of a rank where multiprocessing has one: its exit code comes from the coordinator."""

    DupFd = popen_spawn_posix._DupFd

    def __init__(self, launcher: Launcher, worker: Any, rank: int, *, is_forked: bool) -> None:
        self._launcher = launcher
        self.returncode: int | None = None
        self.method = "fork" if is_forked else "spawn"
        util._flush_std_streams()  # type: ignore[attr-defined]
        sent = None if is_forked else self._pickled(worker)
        mine, theirs = Channel.pair()
        arena_file, files = os.memfd_create("arena"), Files()
        arena = Arena(file=arena_file)
        self.pid = _fork_without_parent(lambda: _run_rank(launcher, worker, sent, rank, theirs, arena, files))
        self.sentinel, told = os.pipe()
        given = [mine.fileno(), arena_file, files.output, files.errors, files.stack, told]
        launcher.line.send(Started(self.pid), given)
        mine.close()
        theirs.close()
        arena.close()
        files.close()
        os.close(arena_file)
        os.close(told)

    def _pickled(self, worker: Any) -> tuple[dict[str, Any], bytes]:
        """What multiprocessing sends a process that it spawns (popen_spawn_posix.py)."""
        preparation = spawn.get_preparation_data(worker._name)
        data = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(worker, data)
        finally:
            context.set_spawning_popen(None)
        return preparation, data.getvalue()

    def duplicate_for_child(self, file: int) -> int:
        """A file has the same number there."""
        return file

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, if it has ended."""
        if sys._getframe(1).f_code.co_name == "_cleanup":  # looks after others while one more is started
            return self.returncode
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended."""
        self._launcher.begin()
        if self.returncode is None and select.select([self.sentinel], [], [], timeout)[0]:
            data = os.read(self.sentinel, _CODE.size)
            self.returncode = _CODE.unpack(data)[0] if data else -9
        return self.returncode

    def terminate(self) -> None:
        """The coordinator ends all ranks when their world is over."""

    kill = terminate

    def close(self) -> None:
        """Nothing is left open but the sentinel, at which somebody may still wait."""


def exit_code_as_bytes(code: int) -> bytes:
    """What `RankPopen.wait` reads."""
    return _CODE.pack(code)


def _fork_without_parent(run: Callable[[], NoReturn]) -> int:
    """Fork a process that is an orphan at once, so that it becomes the coordinator's child; its number."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(reading)
            os.close(writing)
            run()  # by its first message it is the coordinator's
        os.write(writing, pid.to_bytes(8, "little"))
        os._exit(0)
    os.close(writing)
    pid = int.from_bytes(os.read(reading, 8), "little")
    os.close(reading)
    os.waitpid(between, 0)
    return pid


# --- a rank that a launcher has started -------------------------------------------------------------------------------


def _run_rank(
    launcher: Launcher,
    worker: Any,
    sent: tuple[dict[str, Any], bytes] | None,
    rank: int,
    channel: Channel,
    arena: Arena,
    files: Files,
) -> NoReturn:
    launcher.__exit__()
    launcher.line.close()
    launcher.own_environment()
    try:
        terms = launcher.terms._replace(**channel.receive())
    except EOFError:
        os._exit(0)
    if sent is not None:
        launcher.forget_modules()
    program = Launched(worker, sent)
    rank_process.main(
        Setting(rank, terms._replace(program=program, is_forked_by_program=sent is None), channel, arena, files)
    )


class Launched:
    """What a process of multiprocessing runs, as a rank's program."""

    def __init__(self, worker: Any, sent: tuple[dict[str, Any], bytes] | None) -> None:
        self._worker = worker
        self._sent = sent

    def __call__(self, rank: int) -> None:
        """As BaseProcess._bootstrap, but for what it does with errors."""
        __tracebackhide__ = True
        own: Any = process
        worker = self._worker
        if self._sent is not None:
            preparation, data = self._sent
            spawn.prepare(preparation)
            worker = reduction.pickle.load(io.BytesIO(data))  # type: ignore[attr-defined]
        own._children = set()
        own._current_process = worker
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        util._run_after_forkers()  # type: ignore[attr-defined]
        try:
            _run(worker)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        finally:
            util._exit_function()  # type: ignore[attr-defined]


def _run(worker: Any) -> None:
    __tracebackhide__ = True
    if worker._target is not _worker_of_spawn:
        worker.run()
        return
    function, number, arguments, error_file = worker._args
    try:
        function(number, *arguments)
    except Exception:  # mp.spawn reads it there
        with open(error_file, "wb") as file:
            pickle.dump(traceback.format_exc(), file)
        raise
