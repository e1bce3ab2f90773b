"""Programs: a file or a module that each rank runs as `__main__`, as torchrun and python do."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType

from ddpsim.simulator.choices import HASH_SEEDS, Start
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching.module_files import file_of

_USES_DYNAMO = re.compile(
    r"\b(_dynamo|_inductor|checkpoint|compile|distributed\.tensor|DTensor|export|FSDP|FullyShardedDataParallel|fully_shard"
    r"|parallelize_module|pipelining|profiler)\b"
)
"""What of torch loads its compiler; its optimizers and DDP do not (process_group/late_dynamo.py)."""

_READS_ARGUMENTS = re.compile(r"argv|argparse|optparse|fileinput|unittest|distributed\.(run|launch)|common_utils|runpy")
"""What of Python and torch reads a program's arguments."""

MASTER_PORT = 29_500
"""torchrun's own; nobody listens there, as rendezvous and stores are the simulator's."""


@dataclass(frozen=True, slots=True)
class Script:
    """A command line without the `python`: a file or `-m` and a module, and what is theirs.

    Called with a rank, in a process of that rank's own, it runs there, and does not return before it has ended.
    """

    command: tuple[str, ...]
    counts_ranks: bool = False
    """If it starts its ranks itself, there are as many as it says."""
    within: Callable[[], AbstractContextManager[object]] | None = None
    """A function of a module, for what is in place while it runs."""

    @property
    def name(self) -> str:
        """As one types it in a shell."""
        return shlex.join(self.command)

    @property
    def is_module(self) -> bool:
        """True for `-m MODULE`."""
        return self.command[0] == "-m"

    @property
    def target(self) -> str:
        """The file, or `-m MODULE`, without its arguments."""
        return shlex.join(self.command[:2] if self.is_module else self.command[:1])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The program's own."""
        return self.command[2:] if self.is_module else self.command[1:]

    @property
    def folder(self) -> str:
        """Where its modules are looked for first."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.abspath(self.command[0]))

    def may_need_dynamo(self) -> bool:
        """False for one whose text has nothing that loads torch's compiler; what else it imports may."""
        return self._may(_USES_DYNAMO)

    def ignores_arguments(self) -> bool:
        """True for one whose text cannot read its arguments; what else it imports may."""
        return not self._may(_READS_ARGUMENTS)

    def _may(self, pattern: re.Pattern[str]) -> bool:
        """False if its text has no such thing, and imports nothing but torch, numpy and Python's own."""
        try:
            text = self.text()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            return True
        names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
        names += ["." * node.level + (node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        known = {*sys.stdlib_module_names, "torch", "numpy"}
        return not text or bool(pattern.search(text)) or any(name.split(".")[0] not in known for name in names)

    def check(self) -> None:
        """Raise UsageError if there is nothing that could run."""
        path = self._module_file() if self.is_module else self.command[0]
        if not path:
            return
        try:
            source = _source(path)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path!r}, expected a program: correct the path") from None
        except OSError as error:
            raise UsageError(
                f"{path!r} cannot be read ({error.strerror}), expected a program: correct the path"
            ) from None
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            raise UsageError(f"{path!r} is no Python ({error}), expected a program in Python") from None
        try:
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{path!r} does not compile ({error}): mend it first, `python {path}` says where"
            ) from None

    def _module_file(self) -> str:
        """The module's file; "" if it has none in Python. Raises UsageError if there is no such module."""
        if len(self.command) < 2:
            raise UsageError("-m is the last word, expected a module after it: name one")
        path = file_of(self.command[1])
        return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path

    def file(self) -> str | None:
        """The file of Python that it is; None if there is none."""
        path = self._module_file() if self.is_module else self.command[0]
        return path if path.endswith(".py") else None

    def text(self) -> str:
        """Its source; "" if it has none."""
        file = self.file()
        return "" if file is None else _source(file)

    def __call__(self, rank: int) -> int | None:
        """Run it, as `__main__`. SystemExit with 0 or None is its end, as it is for Python, and 0 is returned."""
        __tracebackhide__ = True
        try:
            with self.within() if self.within is not None else nullcontext():
                self._run()
        except SystemExit as error:
            if error.code in (None, 0):
                return 0
            raise
        return None

    def _run(self) -> None:
        __tracebackhide__ = True
        if self.is_module:
            self._run_module()
        else:
            self._run_file()

    def _run_module(self) -> None:
        sys.argv = list(self.command[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(self.command[1], run_name="__main__", alter_sys=True)

    def _run_file(self) -> None:
        path = os.path.abspath(self.command[0])  # as Python has it, so that it holds behind os.chdir
        sys.argv = list(self.command)
        sys.path.insert(0, os.path.dirname(path))
        main = ModuleType("__main__")
        main.__file__ = path
        vars(main)["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        exec(compile(_source(path), path, "exec", dont_inherit=True), vars(main))


def _source(path: str) -> str:
    with tokenize.open(path) as file:
        return file.read()


def start_of_programs(alike: bool) -> Start:
    """How ranks of a program start. A PYTHONHASHSEED of the caller's is that of all ranks, as torchrun hands it on."""
    own = own_hash_seed()
    if own is not None:
        return Start(alike, (own,))
    return Start(alike, HASH_SEEDS[:1] if alike else HASH_SEEDS)


def own_hash_seed() -> int | None:
    """The caller's PYTHONHASHSEED; None if there is none, or if it is no number."""
    own = os.environ.get("PYTHONHASHSEED", "")
    return int(own) if own.isdecimal() and int(own) < 1 << 32 else None


@contextmanager
def with_hash_seed(seed: int | None) -> Iterator[None]:
    """Let the caller have a PYTHONHASHSEED; None for the one that there is."""
    if seed is None:
        yield
        return
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(seed)
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED")
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


def is_program(words: Sequence[str]) -> bool:
    """True if a command line begins with a file of Python or with `-m`."""
    return bool(words) and (words[0] == "-m" or (words[0].endswith(".py") and ":" not in words[0]))
