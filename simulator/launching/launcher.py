"""A program that starts its ranks itself, by `mp.spawn`, `Process.start` or torchrun: what runs in its own process.

The program runs once, as its own launcher and as Python runs it. What multiprocessing would start becomes a rank: it is
forked here, as a process that waits until the coordinator lets it begin, and torch's and Python's own code above it
(`mp.spawn`, `ProcessContext.join`, `Process.join`) stays as it is. A rank of the start method "fork" has what the
launcher has; one of "spawn" imports the program again under the name `__mp_main__`, and is sent its function pickled.

Processes are ranks as long as they look like it: the workers of `mp.spawn`, or processes of one function that are
given their numbers, 0, 1, 2 and so on, among their arguments. Others are started as ever.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import context, process, util
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim.simulator.launching.launched import Body, Command, Worker, is_worker_of_spawn
from ddpsim.simulator.launching.launcher_line import Begin, Done, Line, MakesGroup, Refused, StartsAgain
from ddpsim.simulator.launching.rank_popen import RankPopen
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.rank_processes import rank_process
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.external_processes import watch_children
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.rank_processes.own_process import end_executors_of_processes, environment, flush, make_own_process
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, RankConfig
from ddpsim.simulator.rank_processes.rank_files import Files
from ddpsim.simulator.runtime import outcome
from ddpsim.simulator.runtime.replaced import Replaced


def main(rank_config: RankConfig, line: Line) -> NoReturn:
    """Run the program as its own launcher, and end the process."""
    raised = None
    try:
        make_own_process(rank_config)
        watch_children(rank_config.common.external_processes, "the program")
        launcher = Launcher(line, rank_config.common)
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        try:
            with launcher:
                rank_config.common.program(0)
                end_executors_of_processes()
                util._exit_function()  # type: ignore[attr-defined]
        except BaseException as error:
            raised = outcome.describe(0, error)
            raised = raised._replace(traceback=raised.traceback[-(1 << 15) :])
            if not launcher.has_begun:
                traceback.print_exc()
        flush()
        line.send(Done(raised), [])
    finally:
        flush()
        os._exit(0)


class Launcher:
    """Takes the place of what starts processes."""

    def __init__(self, line: Line, config: ProcessConfig) -> None:
        self.line = line
        self.has_begun = False
        self._pid = os.getpid()
        self.config = config
        _mark_environment()
        self._modules = frozenset(sys.modules)
        self._path = tuple(sys.path)
        self._target: Any = None
        self._ranks: list[RankPopen] = []
        self._replaced = Replaced()

    def __enter__(self) -> None:
        for kind in (context.ForkProcess, context.SpawnProcess, context.ForkServerProcess):
            self._replaced.put(kind, "_Popen", staticmethod(self._popen(kind)))
        self._replaced.replace(multiprocessing.connection, "wait", self._waiter)
        for owner, name in (
            (distributed_c10d, "_new_process_group_helper"),
            (sys.modules["torch.distributed.rendezvous"], "_create_c10d_store"),
            (dist, "TCPStore"),
        ):
            self._replaced.replace(owner, name, self._group_maker)
        elastic = importlib.import_module("ddpsim.simulator.launching.elastic")  # whose imports only launchers need
        for module in elastic.LAUNCHERS:
            self._replaced.put(module, "launch_agent", elastic.Agent(self).launch)
        if (gpus := self.config.gpus) is not None:  # to count them is all that a launcher does; ranks are given theirs
            accelerator = torch.device("cuda") if gpus else None
            for counting in (torch.cuda, torch.accelerator):
                self._replaced.put(counting, "is_available", lambda: gpus > 0)
                self._replaced.put(counting, "device_count", lambda: gpus)
            self._replaced.put(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)

    def __exit__(self, *error: object) -> None:
        self._replaced.put_back()

    def begin(self) -> None:
        """Somebody waits for the ranks: no more will come."""
        if self._ranks and not self.has_begun:
            self.has_begun = True
            self.line.send(Begin(), [])

    def _take_own_environment(self) -> None:
        """In a rank: take away what torchrun would have set, unless the program has set it otherwise."""
        for name in environment(0, self.config.world_size).keys() - {"OMP_NUM_THREADS"}:
            if isinstance(_entries().get(os.fsencode(name)), _Ours):
                del os.environ[name]

    def _forget_modules(self) -> None:
        """In a rank that begins anew: let it import the project's modules itself."""
        places = (sysconfig.get_path("stdlib"), *site.getsitepackages(), sysconfig.get_path("purelib"))
        for name in [name for name in sys.modules if name not in self._modules]:
            file = getattr(sys.modules[name], "__file__", None)
            if file and file.endswith(".py") and not file.startswith(places):
                del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")

    # --- ranks --------------------------------------------------------------------------------------------------------

    def start_command(self, program: Script, environment: Mapping[str, str]) -> RankPopen:
        """Start a rank that runs a program."""
        self._target = program
        return self._start(Command(program, environment, self._path))

    def refuse(self, line: str) -> NoReturn:
        """End all, with a line for the user."""
        self.line.send(Refused(line), [])
        os._exit(0)

    def _start(self, body: Body) -> RankPopen:
        for other in self._ranks:
            other.forget_glances()
        rank = RankPopen(self, len(self._ranks), body)
        self._ranks.append(rank)
        return rank

    def run_rank(self, rank: int, body: Body, channel: Channel, arena: Arena, files: Files) -> NoReturn:
        """In the process of a rank: run it."""
        self.__exit__()
        self.line.close()
        self._take_own_environment()
        try:
            config = self.config._replace(**channel.receive())
        except EOFError:
            os._exit(0)
        if not body.is_forked:
            self._forget_modules()
        config = config._replace(program=body, is_forked_by_program=body.is_forked)
        rank_process.main(RankConfig(rank, config, channel, arena, files))

    # --- what it replaces ---------------------------------------------------------------------------------------------

    def _popen(self, kind: Any) -> Callable[[Any], Any]:
        original = vars(kind)["_Popen"].__func__

        def popen(worker: Any) -> Any:
            if os.getpid() != self._pid or not self._is_rank(worker):
                return original(worker)
            self._target = worker._target
            return self._start(Worker(worker, is_forked=kind is context.ForkProcess))

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
        if is_worker_of_spawn(worker):
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
            if os.getpid() != self._pid:
                in_children.refuse()
            if not self._ranks:
                self.line.send(MakesGroup(), [])
                os._exit(0)
            return original(*arguments, **options)

        return make


class _Ours(bytes):
    """The value of a variable before the program begins: one that it sets, to the same value perhaps, is none."""


def _entries() -> Any:
    environment: Any = os.environ
    return environment._data


def _mark_environment() -> None:
    entries = _entries()
    for name, value in entries.items():
        entries[name] = _Ours(value)
