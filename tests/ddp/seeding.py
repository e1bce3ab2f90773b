"""Runs tests of this suite against an engine with one fault in it, which is never written into the tree.

Each run has a process of its own, forked from a session of pytest that has imported torch and has collected nothing
yet: so it costs no import, and no thread, no autograd graph and no GPU is forked along. There the faulty module is
compiled from its changed text when the tests import it.
"""

from __future__ import annotations

import ast
import gc
import io
import multiprocessing
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600.0
"""For one process, on a machine that is busy. What hangs, the simulator reports in much less."""
_PRELOADED = (
    "torch._dynamo",  # by the first optimizer
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.optim",
    "ddpsim.simulator.api",
)
"""Not the engine: the tests have to import it anew."""
_ARGUMENTS = ("-x", "-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")


@dataclass(frozen=True, slots=True)
class Fault:
    """A small change of a function of the engine, and the tests of which at least one has to fail under it."""

    name: str
    module: str
    """In the package `ddp`."""
    function: str
    """Its qualified name."""
    old: str
    """An expression, or statements, that stand exactly once in the function."""
    new: str
    noticed_by: tuple[str, ...]
    """Files of tests/ddp, or single tests in them."""


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of a table such as seeded_faults.txt."""
    faults = []
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE)[1:]:
        head, *rest = section.splitlines()
        module, _, function = head.strip("[]").partition(".")
        for entry in re.split(r"\n(?=\S)", "\n".join(rest)):
            title, _, change = entry.partition("\n")
            name, *tests = title.split(" | ")
            old, new = map(textwrap.dedent, re.split(r"\s==>\s", change, maxsplit=1))
            faults.append(Fault(name, module, function, old, new, tuple(tests)))
    return tuple(faults)


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
    tree = ast.parse(module_text(fault.module))
    function = next((node for name, node in _functions(tree, "") if name == fault.function), None)
    change = _Change(fault.old, fault.new)
    if function is not None:
        change.visit(function)
    if change.count != 1:
        raise ValueError(
            f"{fault.function} of ddp/{fault.module}.py has {change.count} times {fault.old!r}, expected 1: update the "
            f"fault {fault.name!r} in tests/ddp/seeded_faults.txt"
        )
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")


class _Change(ast.NodeTransformer):
    """Replaces an expression, or statements in a row, and counts how often it has."""

    def __init__(self, old: str, new: str) -> None:
        self.count = 0
        self._old, self._new = ast.parse(old).body, ast.parse(new).body
        self._is_of_expressions = all(
            len(body) == 1 and isinstance(body[0], ast.Expr) for body in (self._old, self._new)
        )
        self._wanted = [ast.dump(node.value if self._is_of_expressions else node) for node in self._old]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._is_of_expressions and ast.dump(node) == self._wanted[0]:
            self.count += 1
            return self._new[0].value
        super().generic_visit(node)
        if not self._is_of_expressions:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(statements := getattr(node, name, None), list):
                    self._replace(statements)
        return node

    def _replace(self, statements: list[ast.stmt]) -> None:
        size = len(self._wanted)
        for start in reversed(range(len(statements) - size + 1)):
            if list(map(ast.dump, statements[start : start + size])) == self._wanted:
                self.count += 1
                statements[start : start + size] = self._new


def run_tests(tests: Iterable[str], texts: Mapping[str, str]) -> Outcome:
    """Run the tests, until one fails; modules of `ddp` with a text given are compiled from it instead of their file."""
    session = _session()
    session.send(([f"tests/ddp/{test}" for test in tests], dict(texts)))
    outcome: Outcome = session.recv()
    return outcome


FAULTS = read_faults((Path(__file__).parent / "seeded_faults.txt").read_text(encoding="utf-8"))


@cache
def _bytecode() -> TemporaryDirectory[str]:
    """Where the forks keep what they compile if they may not beside it, but for faulty modules: so only the first
    compiles the rest.
    """
    return TemporaryDirectory()


@cache
def _session() -> Connection:
    """The other end of a session that others are forked from; it ends when this process does."""
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(
        target=_be_the_session, args=(theirs, _bytecode().name), daemon=True
    ).start()
    theirs.close()
    return ours


def _be_the_session(line: Connection, bytecode: str) -> None:
    """What the process of the session does."""
    import pytest

    for name in _PRELOADED:
        import_module(name)
    assert "ddpsim.ddp" not in sys.modules
    os.chdir(ROOT)
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        os.environ.pop(name, None)
    # Nor ddpsim's own plugin: pytest would rewrite the assertions of its packages, which are imported already.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if sys.dont_write_bytecode:  # else the suite has kept what it compiled
        sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    forks = _Forks(line)
    with redirect_stdout(forks.output), redirect_stderr(forks.output):
        try:
            status: int | None = int(pytest.main([*_ARGUMENTS, f"--rootdir={ROOT}", "tests/ddp"], [forks]))
        except BaseException:
            status = None
            forks.output.write(traceback.format_exc())
    forks.end(status)


class _Forks:
    """A plugin that forks a session before it collects, as often as it is asked; only the forks go on."""

    def __init__(self, line: Connection) -> None:
        self.output = io.StringIO()
        self._line = line
        self._sender: Connection | None = None
        """In a fork."""

    def pytest_collection(self, session: Any) -> None:
        """Fork a process for each run that is asked for, one after the other."""
        gc.collect()
        gc.freeze()  # pytest collects garbage several times, and what was forked along is none
        while self._sender is None:
            try:
                tests, texts = self._line.recv()
            except EOFError:  # nobody is there any more
                os._exit(0)
            receiver, sender = multiprocessing.Pipe(duplex=False)
            if process := os.fork():
                sender.close()
                self._line.send(_outcome(process, receiver))
                receiver.close()
            else:
                self._sender = sender
        session.config.args[:] = tests
        self._finder = _Finder(texts)
        sys.meta_path.insert(0, self._finder)

    def end(self, status: int | None) -> NoReturn:
        """Tell how a fork has ended."""
        assert self._sender is not None, self.output.getvalue()
        if unused := self._finder.unused:
            status = None
            self.output.write(f"never imported: {unused}")
        self._sender.send(Outcome(status, self.output.getvalue()))
        os._exit(0)


def _outcome(process: int, receiver: Connection) -> Outcome:
    """What a fork tells; it is ended."""
    try:
        if not receiver.poll(LIMIT_SECONDS):
            return Outcome(None, f"still running after {LIMIT_SECONDS:.0f} s: a hang that the simulator did not report")
        outcome: Outcome = receiver.recv()
        return outcome
    except EOFError:
        return Outcome(None, "the process ended, and told nothing")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


class _Finder(MetaPathFinder):
    """Finds the modules of `ddp` whose text is given."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.unused = set(texts)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        module = fullname.removeprefix("ddpsim.ddp.")
        if module == fullname or module not in self._texts:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        spec.loader = _Loader(fullname, str(_path(module)), self._texts[module])
        self.unused.discard(module)
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
