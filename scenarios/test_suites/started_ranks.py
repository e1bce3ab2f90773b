"""The ranks that a test has started as processes of multiprocessing: they run when the test waits for them.

Until then it is not known how many there are. Joined, polled or waited for, they run at once; if the test reads what
they send, or waits for a condition, they run in a thread meanwhile.
"""

import copy
import multiprocessing.process
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.errors import RankLostError
from ddpsim.simulator.launching.launcher import WorkerBody, run_worker

_GLANCES = 3
"""A test that asks more often than this for a process's exit code waits for it."""

_SHARED = re.compile(rb"multiprocessing\.(connection|heap|managers|queues|reductions|sharedctypes|synchronize)")
"""Pattern of what is pickled for a rank and would be shared with the test's process, which ranks as threads are in."""

_PIDS = count(1 << 23)
"""Numbers above those of all processes: nothing can be sent to a rank that has not begun."""

Body = Callable[[int], None]


class StartedRank:
    """The process of a rank, as multiprocessing sees it."""

    def __init__(self, world: "World", body: Body, *, is_forked: bool) -> None:
        self.method = "fork"
        self.is_forked = is_forked
        self.pid = next(_PIDS)
        self.returncode: int | None = None
        self.glances = 0
        self.body = body
        self.environment = dict(os.environ)
        self.sentinel, self._open_while_running = os.pipe()
        self.world = world

    def end(self, code: int) -> None:
        """Set the exit code, unless there is one. Whoever waits for the sentinel notices."""
        if self.returncode is None:
            self.returncode = code
            os.close(self._open_while_running)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None if the rank has not ended. Many calls mean that the test waits for it."""
        self.glances += 1
        return self.wait() if self.glances > _GLANCES else self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Run the ranks, unless they have run, and return the exit code."""
        __tracebackhide__ = True
        if self.returncode is None:
            self.world.run()
            self.end(1)  # it has waited for a rank that has raised an error: gloo then raises one, too
        return self.returncode

    def terminate(self) -> None:
        """End a rank that waits for a rank that has raised an error."""
        self.end(-signal.SIGTERM)

    kill = terminate

    def close(self) -> None:
        """Do nothing: the sentinel is open until the test has ended."""


class World:
    """The ranks of one run."""

    def __init__(self, ranks: RanksOfTest, function: Any, positions: frozenset[int | str]) -> None:
        self.function = function
        self.started: list[StartedRank] = []
        self.positions = positions
        """The arguments that have been each rank's number."""
        self.on: str | None = None
        self.has_begun = False
        self.failure: BaseException | None = None
        """A failure of the run that is no error of a rank, until it was raised."""
        self._ranks = ranks
        self._meanwhile: threading.Thread | None = None

    def run(self) -> None:
        """Run the ranks to their end, unless they have run. Raises the failure of the run, if it is no rank's error."""
        __tracebackhide__ = True
        if not self.has_begun:
            self._run_ranks()
        elif self._meanwhile is not None:
            self._meanwhile.join()
        self.raise_failure()

    def run_meanwhile(self) -> None:
        """Let the ranks run in a thread, as processes: the test waits for what they send."""
        if not self.has_begun:
            self.has_begun, self.on = True, "process"
            self._meanwhile = threading.Thread(target=self._run_ranks, daemon=True)
            self._meanwhile.start()

    def raise_failure(self) -> None:
        """Raise the failure of the run once, if there is one."""
        __tracebackhide__ = True
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _run_ranks(self) -> None:
        self.has_begun = True
        codes: Mapping[int, int] = {}
        of_process: Any = multiprocessing.process
        children = of_process._children
        if self._meanwhile is None:  # a start polls all children; a rank's are those that it starts itself
            of_process._children = set()
        try:
            self._ranks.run(self._run_rank, len(self.started), function=self.function, on=self.on)
            codes = dict.fromkeys(range(len(self.started)), 0)
        except BaseException as error:
            if (result := self._ranks.result_with(error)) is not None:
                ended = {rank: 0 for rank, value in enumerate(result.returns) if value == 0}
                codes = ended | {rank: _exit_code(each) for rank, each in result.errors.items()}
            else:
                self.failure = error
                codes = dict.fromkeys(range(len(self.started)), -signal.SIGKILL)
        finally:
            of_process._children = children
        for rank, code in codes.items():
            self.started[rank].end(code)

    def _run_rank(self, rank: int) -> int:
        __tracebackhide__ = True
        started = self.started[rank]
        os.environ.clear()
        os.environ.update(started.environment)
        if self._ranks.is_rank and self._ranks.attempt is not None and not started.is_forked:
            _forget_modules_of_tests(self._ranks.attempt.item)
        try:
            started.body(rank)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
        return 0

    def close(self) -> None:
        """Wait for the ranks if they still run, and release what they hold, at the end of the test."""
        if self._meanwhile is not None:
            self._meanwhile.join()
        for each in self.started:
            each.end(-signal.SIGKILL)
            os.close(each.sentinel)


def _forget_modules_of_tests(item: pytest.Item) -> None:
    """Let a rank import the modules of tests anew, as a spawned process does: the session may have changed them.

    These are the modules in the uppermost folder named `test` or `tests`, or else in that of the test's file, but those
    of a virtual environment that lies there.
    """
    folders = [each for each in item.path.parents if each.is_relative_to(item.config.rootpath)]
    folder = next((each for each in reversed(folders) if each.name in ("test", "tests")), item.path.parent)
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or os.sep)
        is_installed = "site-packages" in file.parts or name.partition(".")[0] == "ddpsim"
        if file.is_relative_to(folder) and not is_installed:
            del sys.modules[name]
    if (hypothesis := sys.modules.get("hypothesis.control")) is not None:
        hypothesis._current_build_context.value = None  # which forbids `@given` within an example


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return error.exit_code if isinstance(error, RankLostError) else 1


def body_of_worker(worker: Any, *, is_forked: bool) -> tuple[Body, str | None]:
    """Return what the rank of a process does, and "process" if it can not be a thread.

    What the rank is given is copied now, as a start does; raises an error as a start does.
    """
    worker = copy.copy(worker)  # multiprocessing empties its own
    body = WorkerBody(worker, is_forked=is_forked)
    try:
        data = pickle.dumps((worker._target, worker._args, worker._kwargs))
    except Exception:  # forked processes may be given what does not pickle, and others a queue
        return body, "process"
    if _SHARED.search(data if is_forked else body.data):
        return body, "process"

    def run_copy(rank: int) -> None:
        __tracebackhide__ = True
        own = copy.copy(worker)
        own._target, own._args, own._kwargs = pickle.loads(data)
        run_worker(own)

    return run_copy, None
