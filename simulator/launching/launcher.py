"""Runs in the process of a launcher: a program that starts its ranks itself, by `mp.spawn`, `Process` or torchrun.

The program runs as under Python. A process that multiprocessing would start becomes a rank: it is forked here, and
waits until the coordinator lets it begin. Code of torch and Python above that (`mp.spawn`, `Process.join`) is
unchanged. With the start method "fork" a rank has the launcher's state; with "spawn" it imports the program again as
`__mp_main__`, and receives its function pickled.

A process is a rank if it is a worker of `mp.spawn`, or if processes of one function have their numbers 0, 1, 2 and so
on among their arguments. Other processes start normally.
"""

import importlib
import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import context, popen_spawn_posix, process, reduction, spawn, util
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.multiprocessing.spawn import _wrap as _worker_of_spawn

from ddpsim.simulator.errors import is_internal_error
from ddpsim.simulator.hosts import RankHost, torchrun_variables
from ddpsim.simulator.launching import launcher_line
from ddpsim.simulator.launching.program_ranks import ProcessResources
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.process_group.user_stores import store_names
from ddpsim.simulator.rank_processes import own_process
from ddpsim.simulator.rank_processes.channel import PacketConnection, readable_files
from ddpsim.simulator.rank_processes.external_processes import detect_groups_in_new_pythons
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, RankConfig
from ddpsim.simulator.rank_processes.rank_files import exit_with_internal_error
from ddpsim.simulator.rank_processes.rank_process import run_rank_process as run_rank
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


def is_worker_of_spawn(worker: Any) -> bool:
    """Return whether a function of `torch.multiprocessing`, such as `mp.spawn`, made a process."""
    return worker._target is _worker_of_spawn


def arguments_with_number(worker: Any, number: int) -> frozenset[int | str]:
    """Return which arguments of a process are a number, by position or name: the process may be the rank `number`.

    A process of torch or multiprocessing is no rank, unless `mp.spawn` starts it.
    """
    given = [*enumerate(worker._args), *worker._kwargs.items()]
    if is_worker_of_spawn(worker):
        given = given[1:2]
    elif worker._target is None or getattr(worker._target, "__module__", "").startswith(("torch.", "multi")):
        return frozenset()
    return frozenset(key for key, value in given if type(value) is int and value == number)


class WorkerBody:
    """A process of multiprocessing that becomes a rank: when called, it runs in the rank."""

    DupFd = popen_spawn_posix._DupFd
    """A class that multiprocessing expects here when it pickles file descriptors; see `duplicate_for_child`."""

    def __init__(self, worker: Any, *, is_forked: bool) -> None:
        """Made in the launcher. A process that is not forked is pickled here, as multiprocessing does for "spawn"."""
        self.is_forked = is_forked
        self._worker = worker
        self._preparation: dict[str, Any] = {}
        self.data = b""
        if not is_forked:
            self._preparation = spawn.get_preparation_data(worker._name)
            data = io.BytesIO()
            context.set_spawning_popen(self)  # type: ignore[arg-type]
            try:
                reduction.dump(worker, data)
            finally:
                context.set_spawning_popen(None)
            self.data = data.getvalue()

    def duplicate_for_child(self, file: int) -> int:
        """Return the file descriptor unchanged: it has the same number in the rank's process."""
        return file

    def __call__(self, rank: int) -> None:
        """Run the worker in its rank, as BaseProcess._bootstrap does; errors are raised."""
        __tracebackhide__ = True
        own: Any = process
        if not self.is_forked:
            spawn.prepare(self._preparation)
            self._worker = reduction.pickle.load(io.BytesIO(self.data))  # type: ignore[attr-defined]
        own._children = set()
        own._current_process = self._worker
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        util._run_after_forkers()  # type: ignore[attr-defined]
        try:
            run_worker(self._worker)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        finally:
            util._exit_function()  # type: ignore[attr-defined]


def run_worker(worker: Any) -> None:
    """Run what a process of multiprocessing runs."""
    __tracebackhide__ = True
    if not is_worker_of_spawn(worker):
        worker.run()
        return
    function, number, arguments, error_file = worker._args
    try:
        function(number, *arguments)
    except Exception:  # mp.spawn reads the error from this file
        with open(error_file, "wb") as file:
            pickle.dump(traceback.format_exc(), file)
        raise


@dataclass(frozen=True, slots=True)
class CommandBody:
    """A command line that the launcher starts as a rank."""

    program: Script
    environment: Mapping[str, str]
    path: Sequence[str]
    """`sys.path` of the launcher, without the folder of the program."""
    is_forked: bool = False

    def __call__(self, rank: int) -> None:
        """Run the command as `__main__` in its rank."""
        __tracebackhide__ = True
        os.environ.update(self.environment)
        sys.path[:] = self.path
        self.program(rank)


Body = WorkerBody | CommandBody
"""What a rank of a launcher runs. Forked, it has the launcher's state; otherwise it starts anew, with imports."""


_GLANCES = 10
"""A program that asks more often than this for a process's exit code waits for it; printing asks a few times."""


def run_launcher(rank_config: RankConfig, line: PacketConnection) -> NoReturn:
    """Run the program as its own launcher, and end the process."""
    raised = None
    try:
        own_process.make_own_process(rank_config)
        detect_groups_in_new_pythons(rank_config.common.external_processes, "the program")
        launcher = Launcher(line, rank_config.common)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        store_names.cache_clear()  # ranks that are forked have what the program imports from now on
        try:
            with launcher:
                rank_config.common.program(0)
                own_process.shut_down_process_executors()
                util._exit_function()  # type: ignore[attr-defined]
        except BaseException as error:
            if is_internal_error(error):
                raise
            raised = outcome.describe_error(0, error)
            raised = raised._replace(traceback=raised.traceback[-(1 << 15) :])
            if not launcher.has_begun and not launcher.is_starting:
                traceback.print_exc()
        own_process.flush_streams()
        line.send(launcher_line.ProgramEnded(raised, launcher.is_starting))
    except BaseException as error:
        exit_with_internal_error(rank_config.files.stack, error, "the process of the program, which starts the ranks")
    finally:
        own_process.flush_streams()
        os._exit(0)


class RankPopen:
    """The process of a rank, as multiprocessing sees it; its exit code comes from the coordinator."""

    def __init__(self, launcher: "Launcher", rank: int, body: Body) -> None:
        self._launcher = launcher
        self.returncode: int | None = None
        self.glances = 0
        self.method = "fork" if body.is_forked else "spawn"
        util._flush_std_streams()  # type: ignore[attr-defined]
        own = ProcessResources.open_for_rank(rank)
        self.pid = _fork_without_parent(lambda: launcher.run_rank(body, own))
        self.sentinel, writing = os.pipe()
        sent = [own.channel.fileno(), own.arena_file, *own.files, writing]
        launcher.line.send(launcher_line.StartedRank(self.pid), sent)
        own.close_all()
        os.close(writing)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None if the rank has not ended. Many calls mean that the program waits for it."""
        self.glances += 1
        return self.wait(0.0) if self.glances > _GLANCES else self._wait_for_exit_code(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the rank has ended, and return its exit code."""
        self._launcher.begin_ranks()
        return self._wait_for_exit_code(timeout)

    def _wait_for_exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None and readable_files([self.sentinel], timeout):
            data = os.read(self.sentinel, launcher_line.EXIT_CODE.size)
            self.returncode = launcher_line.EXIT_CODE.unpack(data)[0] if data else -9
        return self.returncode

    def terminate(self) -> None:
        """Do nothing: the coordinator ends all ranks at the end of the run."""

    kill = terminate

    def close(self) -> None:
        """Do nothing: only the sentinel is open, and the program may still wait for it."""


class Launcher:
    """Replaces the functions that start processes, so that the processes which are ranks belong to the simulation."""

    def __init__(self, line: PacketConnection, config: ProcessConfig) -> None:
        self.line = line
        self.has_begun = self.is_starting = False
        self._pid = os.getpid()
        self.config = config
        entries = _environment_entries()
        for name, value in entries.items():
            entries[name] = _UnsetVariable(value)
        self._modules = frozenset(sys.modules)
        self._path = tuple(sys.path)
        self._target: Any = None
        self._ranks: list[RankPopen] = []
        self._replaced = ReplacedAttributes()

    def __enter__(self) -> None:
        for kind in (context.ForkProcess, context.SpawnProcess, context.ForkServerProcess):
            self._replaced.set_attribute(kind, "_Popen", staticmethod(self._popen_replacement(kind)))
        self._replaced.replace_attribute(multiprocessing.connection, "wait", self._wait_replacement)
        for owner, name in (
            (distributed_c10d, "_new_process_group_helper"),
            (sys.modules["torch.distributed.rendezvous"], "_create_c10d_store"),
            (dist, "TCPStore"),
        ):
            self._replaced.replace_attribute(owner, name, self._group_creation_replacement)
        elastic = importlib.import_module("ddpsim.simulator.launching.elastic")  # only launchers need its imports
        for module in elastic.LAUNCHERS:
            self._replaced.set_attribute(module, "launch_agent", elastic.ElasticAgent(self).launch_ranks)
        if (gpus := self.config.gpus) is not None:  # launchers only count GPUs
            accelerator = torch.device("cuda") if gpus else None
            for counting in (torch.cuda, torch.accelerator):
                self._replaced.set_attribute(counting, "is_available", lambda: gpus > 0)
                self._replaced.set_attribute(counting, "device_count", lambda: gpus)
            self._replaced.set_attribute(
                torch.accelerator, "current_accelerator", lambda check_available=False: accelerator
            )

    def __exit__(self, *error: object) -> None:
        self._replaced.restore_attributes()

    def begin_ranks(self) -> None:
        """Tell the coordinator to let the ranks begin: the program waits for them, so it has started all."""
        if self._ranks and not self.has_begun:
            self.has_begun = True
            self.line.send(launcher_line.BeginRanks())

    def _remove_torchrun_variables(self) -> None:
        """In a rank: remove the variables of torchrun that the program has not set."""
        for name in torchrun_variables(RankHost(0, self.config.world_size)).keys() - {"OMP_NUM_THREADS"}:
            if isinstance(_environment_entries().get(os.fsencode(name)), _UnsetVariable):
                del os.environ[name]

    def _unload_project_modules(self) -> None:
        """In a rank that is not forked from the program: make it import the project's modules itself."""
        places = (sysconfig.get_path("stdlib"), *site.getsitepackages(), sysconfig.get_path("purelib"))
        for name in [name for name in sys.modules if name not in self._modules]:
            file = getattr(sys.modules[name], "__file__", None)
            if file and file.endswith(".py") and not file.startswith(places):
                del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")

    def start_command(self, program: Script, environment: Mapping[str, str]) -> RankPopen:
        """Start a rank that runs a command line."""
        self._target = program
        return self._start_rank(CommandBody(program, environment, self._path))

    def reject_program(self, line: str) -> NoReturn:
        """End the run with an error message about the program."""
        self.line.send(launcher_line.LaunchRejected(line))
        os._exit(0)

    def _start_rank(self, body: Body) -> RankPopen:
        for other in self._ranks:
            other.glances = 0  # multiprocessing polls all processes when another one is started
        rank = RankPopen(self, len(self._ranks), body)
        self._ranks.append(rank)
        return rank

    def run_rank(self, body: Body, own: ProcessResources) -> NoReturn:
        """Run a rank in its process."""
        try:
            self.__exit__()
            self.line.close()
            self._remove_torchrun_variables()
            config = self.config._replace(**own.theirs.receive())
            if not body.is_forked:
                self._unload_project_modules()
            config = config._replace(program=body, is_forked_by_program=body.is_forked)
            run_rank(RankConfig(own.rank, config, own.theirs, own.arena, own.files))
        except EOFError:  # the coordinator has closed the channel
            os._exit(0)
        except BaseException as error:
            where = f"the process of rank {own.rank}, before its program began"
            exit_with_internal_error(own.files.stack, error, where)

    def _popen_replacement(self, kind: Any) -> Callable[[Any], Any]:
        original = vars(kind)["_Popen"].__func__

        def start_process_or_rank(worker: Any) -> Any:
            if os.getpid() != self._pid or not self._is_rank(worker):
                return original(worker)
            self._target, self.is_starting = worker._target, True
            rank = self._start_rank(WorkerBody(worker, is_forked=kind is context.ForkProcess))
            self.is_starting = False
            return rank

        return start_process_or_rank

    def _is_rank(self, worker: Any) -> bool:
        if worker._target is None:
            return False
        if self.has_begun and worker._target == self._target:
            self.line.send(launcher_line.SecondStartReport())
            os._exit(0)
        if self.has_begun:
            return False
        number = len(self._ranks)
        if number and worker._target != self._target and not is_worker_of_spawn(worker):
            return False
        return bool(arguments_with_number(worker, number))

    def _wait_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_for_sentinels(object_list: Any, timeout: float | None = None) -> Any:
            waited = list(object_list)
            if os.getpid() == self._pid and any(rank.sentinel in waited for rank in self._ranks):
                self.begin_ranks()
            return original(waited, timeout)

        return wait_for_sentinels

    def _group_creation_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a function that makes a process group: a program that calls it before it starts ranks starts none."""

        def create_group(*arguments: Any, **options: Any) -> Any:
            if os.getpid() != self._pid:
                in_children.reject_process_group()
            if not self._ranks:
                self.line.send(launcher_line.OwnGroupReport())
                os._exit(0)
            return original(*arguments, **options)

        return create_group


class _UnsetVariable(bytes):
    """Stands for the value of an environment variable that the program has not set."""


def _environment_entries() -> Any:
    environment: Any = os.environ
    return environment._data


def _fork_without_parent(run: Callable[[], NoReturn]) -> int:
    """Fork a process that becomes a child of the coordinator, because its parent ends; return its process id."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(reading)
            os.close(writing)
            run()  # the coordinator is its parent by the first message
        os.write(writing, pid.to_bytes(8, "little"))
        os._exit(0)
    os.close(writing)
    pid = int.from_bytes(os.read(reading, 8), "little")
    os.close(reading)
    os.waitpid(between, 0)
    return pid
