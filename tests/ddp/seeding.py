"""Runs tests of this suite against an engine with one fault in it; nothing is written into the tree.

Each run has a process of its own, forked from one that has imported torch and has never run anything: so it costs no
import, and no thread, no autograd graph and no GPU is forked along. There the faulty module is compiled from its
changed text when the tests import it.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 120.0
"""For one process, on a machine that is busy. What hangs, the simulator reports in much less."""
_PRELOADED = (
    "pytest",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.optim",
    "ddpsim.simulator.api",
)
"""Not the engine: the tests have to import it anew."""
_ARGUMENTS = ("-x", "-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")


@dataclass(frozen=True, slots=True)
class Fault:
    """A small change of the engine, and the tests of which at least one has to fail under it."""

    name: str
    module: str
    """In the package `ddp`."""
    old: str
    """Stands exactly once in the module."""
    new: str
    noticed_by: tuple[str, ...]
    """Files of tests/ddp, or single tests in them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests ended."""

    status: int | None
    """pytest's exit status; None if the process ended without one, or had to be ended."""
    text: str
    """What pytest wrote, or why there is no status."""


def module_text(module: str) -> str:
    """The text of a module of `ddp`, as it is."""
    return _path(module).read_text(encoding="utf-8")


def faulty_text(fault: Fault) -> str:
    """The text of the module with the fault in it; raises ValueError where the module no longer fits the table."""
    text = module_text(fault.module)
    if (count := text.count(fault.old)) != 1:
        raise ValueError(
            f"ddp/{fault.module}.py has {count} places with {fault.old!r}, expected 1: update the fault "
            f"{fault.name!r} in tests/ddp/seeded_faults.py"
        )
    compile(changed := text.replace(fault.old, fault.new), fault.module, "exec")
    return changed


def run_tests(tests: Iterable[str], texts: Mapping[str, str]) -> Outcome:
    """Run the tests, until one fails; modules of `ddp` with a text given are compiled from it instead of their file."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    arguments = (sender, [f"tests/ddp/{test}" for test in tests], dict(texts), _bytecode().name)
    process = _forks().Process(target=_work, args=arguments)  # type: ignore[attr-defined]
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_SECONDS):
            return Outcome(None, f"still running after {LIMIT_SECONDS:.0f} s: a hang that the simulator did not report")
        return Outcome(*receiver.recv())
    except EOFError:
        process.join()
        return Outcome(None, f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


@cache
def _bytecode() -> TemporaryDirectory[str]:
    """Where the processes keep what they compile, but for faulty modules: so only the first compiles the rest."""
    return TemporaryDirectory()


@cache
def _forks() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _work(sender: Connection, tests: Sequence[str], texts: Mapping[str, str], bytecode: str) -> None:
    """What the process does."""
    import pytest

    gc.freeze()  # pytest collects garbage several times, and what was forked along is none
    os.chdir(ROOT)
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        os.environ.pop(name, None)
    # Nor ddpsim's own plugin: pytest would rewrite the assertions of its packages, which are imported already.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    assert "ddpsim.simulator.api" in sys.modules
    assert "ddpsim.ddp" not in sys.modules
    finder = _Finder(texts)
    sys.meta_path.insert(0, finder)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            status: int | None = int(pytest.main([*_ARGUMENTS, f"--rootdir={ROOT}", *tests]))
        except BaseException:
            status = None
            output.write(traceback.format_exc())
    if unused := sorted(set(texts) - finder.used):
        status = None
        output.write(f"never imported: {unused}")
    sender.send((status, output.getvalue()))


class _Finder(MetaPathFinder):
    """Finds the modules of `ddp` whose text is given."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.used: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        module = fullname.removeprefix("ddpsim.ddp.")
        if module == fullname or module not in self._texts:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        spec.loader = _Loader(fullname, str(_path(module)), self._texts[module])
        self.used.add(module)
        return spec


class _Loader(SourceFileLoader):
    """Compiles the text, and keeps nothing of it."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


def _path(module: str) -> Path:
    return ROOT / "ddp" / f"{module}.py"
