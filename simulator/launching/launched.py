"""What a rank of a launcher (a program that starts its ranks itself) runs: a multiprocessing process or a command."""

import io
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import context, popen_spawn_posix, process, reduction, spawn, util
from typing import Any

from torch.multiprocessing.spawn import _wrap as _worker_of_spawn

from ddpsim.simulator.launching.script import Script


def is_worker_of_spawn(worker: Any) -> bool:
    """Return whether a function of `torch.multiprocessing`, such as `mp.spawn`, made a process."""
    return worker._target is _worker_of_spawn


class WorkerBody:
    """A process of multiprocessing that becomes a rank: when called, it runs in the rank."""

    DupFd = popen_spawn_posix._DupFd
    """A class that multiprocessing expects here when it pickles file descriptors; see `duplicate_for_child`."""

    def __init__(self, worker: Any, *, is_forked: bool) -> None:
        """Made in the launcher. A process that is not forked is pickled here, as multiprocessing does for "spawn"."""
        self.is_forked = is_forked
        self._worker = worker
        self._preparation: dict[str, Any] = {}
        self._data = b""
        if not is_forked:
            self._preparation = spawn.get_preparation_data(worker._name)
            data = io.BytesIO()
            context.set_spawning_popen(self)  # type: ignore[arg-type]
            try:
                reduction.dump(worker, data)
            finally:
                context.set_spawning_popen(None)
            self._data = data.getvalue()

    def duplicate_for_child(self, file: int) -> int:
        """Return the file descriptor unchanged: it has the same number in the rank's process."""
        return file

    def __call__(self, rank: int) -> None:
        """Run the worker in its rank, as BaseProcess._bootstrap does; errors are raised."""
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
            _run_worker(self._worker)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        finally:
            util._exit_function()  # type: ignore[attr-defined]


def _run_worker(worker: Any) -> None:
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
