"""What a rank runs that a launcher has started: a process of multiprocessing, or a command."""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import context, popen_spawn_posix, process, reduction, spawn, util
from typing import Any, Protocol

from torch.multiprocessing.spawn import _wrap as _worker_of_spawn

from ddpsim.simulator.launching.script import Script


class Body(Protocol):
    """What runs in a rank, as its program."""

    @property
    def is_forked(self) -> bool:
        """It goes on from where the launcher stands; else it begins anew, and imports what it needs."""

    def __call__(self, rank: int) -> None:
        """Run to the end."""


def is_worker_of_spawn(worker: Any) -> bool:
    """True for a process that `torch.multiprocessing` starts for `mp.spawn` and its like."""
    return worker._target is _worker_of_spawn


class Worker:
    """A process of multiprocessing."""

    DupFd = popen_spawn_posix._DupFd
    """For what is pickled, as is `duplicate_for_child`."""

    def __init__(self, worker: Any, *, is_forked: bool) -> None:
        """Make it in the launcher: one that is not forked is sent, as multiprocessing does (popen_spawn_posix.py)."""
        self.is_forked = is_forked
        self._worker = worker
        self._preparation: dict[str, Any] = {}
        self._data = b""
        if not is_forked:
            self._preparation = spawn.get_preparation_data(worker._name)
            self._data = self._pickled()

    def _pickled(self) -> bytes:
        data = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(self._worker, data)
        finally:
            context.set_spawning_popen(None)
        return data.getvalue()

    def duplicate_for_child(self, file: int) -> int:
        """A file has the same number in the rank."""
        return file

    def __call__(self, rank: int) -> None:
        """As BaseProcess._bootstrap, but for what it does with errors."""
        __tracebackhide__ = True
        own: Any = process
        if not self.is_forked:
            spawn.prepare(self._preparation)
            self._worker = reduction.pickle.load(io.BytesIO(self._data))  # type: ignore[attr-defined]
        own._children = set()
        own._current_process = self._worker
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        util._run_after_forkers()  # type: ignore[attr-defined]
        try:
            _run(self._worker)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        finally:
            util._exit_function()  # type: ignore[attr-defined]


def _run(worker: Any) -> None:
    __tracebackhide__ = True
    if not is_worker_of_spawn(worker):
        worker.run()
        return
    function, number, arguments, error_file = worker._args
    try:
        function(number, *arguments)
    except Exception:  # mp.spawn reads it there
        with open(error_file, "wb") as file:
            pickle.dump(traceback.format_exc(), file)
        raise


class Command:
    """A program that the launcher starts by its command line."""

    is_forked = False

    def __init__(self, program: Script, environment: Mapping[str, str], path: Sequence[str]) -> None:
        """Take what is `sys.path` before the program adds its own folder."""
        self._program = program
        self._environment = environment
        self._path = path

    def __call__(self, rank: int) -> None:
        """Run it as `__main__`."""
        __tracebackhide__ = True
        os.environ.update(self._environment)
        sys.path[:] = self._path
        self._program(rank)
