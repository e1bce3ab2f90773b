"""Runs tests of this suite with faults in the product, which are never written into the tree.

Each run has a process of its own, forked from one that has imported torch and pytest and nothing of ddpsim. There, and
in all interpreters that the tests start, the faulty modules are compiled from their changed text.
"""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.mutants import finder

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600.0
"""For one process, on a machine that is busy. What hangs, the simulator reports in much less."""
_PRELOADED = (
    "pytest",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.optim",
    "torch._dynamo",  # by the first optimizer
)
"""Not ddpsim: the tests have to import it anew."""
_ARGUMENTS = ("-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={ROOT}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tests are to run, with what in the place of modules."""

    tests: tuple[str, ...]
    """Files, folders, or single tests, relative to the repository."""
    texts: Mapping[str, str]
    """What stands in the place of files, by their path relative to the repository."""
    tier: str | None = None
    only: frozenset[str] | None = None
    """Of those tests, the ones that run; None: all."""
    stops: bool = True
    """At the first test that fails."""
    limit: float = LIMIT_SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests ended."""

    status: int | None
    """pytest's exit status; None if the process ended without one, or had to be ended."""
    text: str
    """What pytest wrote, or why there is no status."""
    failed: tuple[str, ...] = ()
    """The tests that failed; without a status, the one that ran last."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each test took, in the order in which they ran."""
    reached: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Which tests came to each probe; the name is empty while tests are imported."""
    unused: tuple[str, ...] = ()
    """Files with another text which nobody has imported in the process of the tests."""


def run_tests(wanted: Wanted) -> Outcome:
    """Run the tests in a process of their own."""
    session = _session()
    session.send(wanted)
    outcome: Outcome = session.recv()
    return outcome


@cache
def _session() -> Connection:
    """The other end of a process that others are forked from; it ends when this one does."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, _bytecode().name), daemon=True)
    # A spawned process imports the main module anew. Another test may have left one there that imports ddpsim.
    with patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
        process.start()
    theirs.close()
    return ours


@cache
def _bytecode() -> TemporaryDirectory[str]:
    """Where the forks keep what they compile if they may not beside it, so only the first compiles it."""
    return TemporaryDirectory()


def _serve(line: Connection, bytecode: str) -> None:
    for name in _PRELOADED:
        import_module(name)
    # Under pytest, what other tests left behind may have imported ddpsim already. Its modules are compiled anew below.
    for name in [name for name in sys.modules if name.partition(".")[0] == "ddpsim"]:
        del sys.modules[name]
    os.chdir(ROOT)
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        os.environ.pop(name, None)
    if sys.dont_write_bytecode:
        sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    gc.collect()
    gc.freeze()  # pytest collects garbage several times, and what was forked along is none
    while True:
        try:
            wanted: Wanted = line.recv()
        except EOFError:  # nobody is there any more
            return
        receiver, sender = multiprocessing.Pipe(duplex=False)
        folder = Path(os.path.realpath(TemporaryDirectory().name))
        folder.mkdir()
        if process := os.fork():
            sender.close()
            line.send(_outcome(process, receiver, folder, wanted.limit))
            receiver.close()
            shutil.rmtree(folder)
        else:
            os.setsid()
            multiprocessing.current_process().daemon = False  # else tests could not start processes by multiprocessing
            outcome = _run(wanted, folder)
            sender.send(outcome)
            os._exit(0)


def _outcome(process: int, receiver: Connection, folder: Path, limit: float) -> Outcome:
    """What a fork tells; it is ended, with what it has started."""
    try:
        if receiver.poll(limit):
            outcome: Outcome = receiver.recv()
            return outcome
        reason = f"still running after {limit:.0f} s: a hang that the simulator did not report"
    except EOFError:
        reason = "the process ended, and told nothing"
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    current = folder / "current"
    return Outcome(None, reason, (current.read_text(encoding="utf-8"),) if current.exists() else ())


def _run(wanted: Wanted, folder: Path) -> Outcome:
    modules = {_module(file): file for file in wanted.texts}
    texts = {module: wanted.texts[file] for module, file in modules.items()}
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    shutil.copy(finder.__file__, folder / "sitecustomize.py")
    os.environ[finder.FOLDER] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    installed = finder.install(str(folder))
    watch, output, status = _Watch(wanted.only, folder), io.StringIO(), None
    arguments = [*_ARGUMENTS, *(["-x"] if wanted.stops else []), *(["--tier", wanted.tier] if wanted.tier else [])]
    import pytest

    with redirect_stdout(output), redirect_stderr(output):
        try:
            status = int(pytest.main([*arguments, *wanted.tests], [watch]))
        except BaseException:
            output.write(traceback.format_exc())
    unused = tuple(modules[module] for module in installed.unused)
    return Outcome(status, output.getvalue(), tuple(watch.failed), watch.seconds, _reached(folder / "reached"), unused)


def _module(file: str) -> str:
    return "ddpsim." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _reached(file: Path) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        number, _, test = line.partition("\t")
        found.setdefault(int(number), set()).add(test)
    return {number: frozenset(tests) for number, tests in found.items()}


class _Watch:
    """A plugin that chooses tests, says which one runs, and notes which failed and how long each took."""

    def __init__(self, only: Iterable[str] | None, folder: Path) -> None:
        self._only, self._current = only, folder / "current"
        self.failed: dict[str, None] = {}
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave the tests that were asked for."""
        if self._only is not None:
            items[:] = [item for item in items if item.nodeid in self._only]

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Say which test runs, to other processes, too."""
        os.environ[finder.TEST] = item.nodeid
        self._current.write_text(item.nodeid, encoding="utf-8")
        self.seconds[item.nodeid] = -time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how long it took."""
        self.seconds[nodeid] += time.perf_counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what failed."""
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_collectreport(self, report: Any) -> None:
        """Note what could not be imported."""
        if report.failed:
            self.failed[report.nodeid] = None
