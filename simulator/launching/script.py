"""Programs: a file or a module that each rank runs as `__main__`, as torchrun and Python do."""

import os
import runpy
import shlex
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from ddpsim.simulator.choices import HASH_SEEDS, RankSeeds
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.hosts import TORCHRUN
from ddpsim.simulator.runtime.call_sites import begin_program


@dataclass(frozen=True, slots=True)
class Script:
    """A command line without the `python`: a file, or `-m` and a module, followed by arguments.

    A call runs the program in this process, which is that of one rank, and returns when the program has ended.
    """

    command: tuple[str, ...]
    counts_ranks: bool = False
    """True if the program starts its ranks itself, so that the number of ranks it starts is the world size."""
    within: Callable[[], AbstractContextManager[object]] | None = None
    """A function that returns a context manager for the program's run. It is pickled, so a module must contain it."""
    rank_environments: tuple[tuple[tuple[str, str], ...], ...] = ()
    """The environment variables of each rank, if the modules to preload read them, so that each rank needs a server."""

    @property
    def name(self) -> str:
        """The command line as typed in a shell."""
        return shlex.join(self.command)

    @property
    def is_module(self) -> bool:
        """True for `-m MODULE`."""
        return self.command[0] == "-m"

    @property
    def target(self) -> str:
        """The program as on the command line, without its arguments: a file, or `-m MODULE`."""
        return shlex.join(self.command[:2] if self.is_module else self.command[:1])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the program."""
        return self.command[2:] if self.is_module else self.command[1:]

    def with_arguments_before(self, arguments: tuple[str, ...]) -> "Script":
        """Return the command line with arguments before those of the program."""
        at = len(self.command) - len(self.arguments)
        return replace(self, command=(*self.command[:at], *arguments, *self.command[at:]))

    @property
    def folder(self) -> str:
        """The folder from which the program's modules are imported first."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.abspath(self.command[0]))

    def check_source(self) -> None:
        """Raise UsageError if the program does not exist, or is not valid Python."""
        path = self._module_file() if self.is_module else self.command[0]
        if not path:
            return
        try:
            source = _read_source(path)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path!r}, expected a program: correct the path") from None
        except OSError as error:
            raise UsageError(
                f"{path!r} cannot be read ({error.strerror}), expected a program: correct the path"
            ) from None
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            raise UsageError(f"{path!r} is no Python ({error}), expected a program in Python: name one") from None
        try:
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{path!r} does not compile ({error}), expected valid Python: "
                f"correct it, `python {path}` shows the line"
            ) from None

    def _module_file(self) -> str:
        """Return the file of the module; "" if the file is not Python. Raises UsageError if there is no such module."""
        if len(self.command) < 2:
            raise UsageError("-m is the last word, expected a module after it: add the module's name")
        path = _find_module_file(self.command[1])
        return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path

    def python_file(self) -> str | None:
        """Return the program's file if it is a Python file, otherwise None."""
        path = self._module_file() if self.is_module else self.command[0]
        return path if path.endswith(".py") else None

    def source_text(self) -> str:
        """Return the source of the program; "" if it has none."""
        file = self.python_file()
        return "" if file is None else _read_source(file)

    def __call__(self, rank: int) -> int | None:
        """Run the program as `__main__`; return 0 if it ends by SystemExit with 0 or None."""
        __tracebackhide__ = True
        with suppress(UsageError):
            if (file := self.python_file()) is not None:  # of a module, its whole package is the program's
                inner = self.command[1].count(".") + file.endswith("__main__.py") if self.is_module else 0
                begin_program(file, max(inner, 1))
        try:
            with self.within() if self.within is not None else nullcontext():
                if self.is_module:
                    self._run_module()
                else:
                    self._run_file()
        except SystemExit as error:
            if error.code in (None, 0):
                return 0
            raise
        return None

    def _run_module(self) -> None:
        sys.argv = list(self.command[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(self.command[1], run_name="__main__", alter_sys=True)

    def _run_file(self) -> None:
        path = os.path.abspath(self.command[0])  # absolute as in Python, so that it stays valid after os.chdir
        sys.argv = list(self.command)
        sys.path.insert(0, os.path.dirname(path))
        main = ModuleType("__main__")
        main.__file__ = path
        vars(main)["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        exec(compile(_read_source(path), path, "exec", dont_inherit=True), vars(main))


def _read_source(path: str) -> str:
    with tokenize.open(path) as file:
        return file.read()


def program_seeds(alike: bool, nodes: int = 1, launcher: str = TORCHRUN, restarts: int = 0) -> RankSeeds:
    """Return the hash seeds of a program's ranks, and their hosts. The caller's own applies to all, as in torchrun."""
    own = environment_hash_seed()
    seeds = (HASH_SEEDS[:1] if alike else HASH_SEEDS) if own is None else (own,)
    return RankSeeds(alike, seeds, nodes, launcher, restarts)


def environment_hash_seed() -> int | None:
    """Return this process's PYTHONHASHSEED; None if it is not set or not a number."""
    own = os.environ.get("PYTHONHASHSEED", "")
    return int(own) if own.isdecimal() and int(own) < 1 << 32 else None


def with_hash_seed(seed: int | None) -> AbstractContextManager[None]:
    """Set PYTHONHASHSEED inside the `with` block; None leaves it unchanged."""
    return nullcontext() if seed is None else with_variable("PYTHONHASHSEED", str(seed))


@contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the `with` block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def is_program(words: Sequence[str]) -> bool:
    """Return whether a command line begins with a Python file or with `-m`."""
    return bool(words) and (words[0] == "-m" or (words[0].endswith(".py") and ":" not in words[0]))


def _find_module_file(name: str) -> str:
    """Return the file that `python -m name` runs in the working folder, without importing anything; "" if that is not a
    Python file. Raises UsageError if there is no such module.
    """
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec_in(f"{name}.__main__", spec.submodule_search_locations)
        if spec is None:
            raise UsageError(
                f"module {name!r} is a package without __main__.py, expected a module that `python -m {name}` runs: "
                "name a module in the package"
            )
    if spec is None:
        raise UsageError(f"there is no module {name!r}, expected one that `python -m {name}` finds: correct the name")
    return spec.origin if spec.origin is not None and spec.origin.endswith(".py") else ""


def _find_spec(name: str) -> ModuleSpec | None:
    locations: Sequence[str] | None = None
    spec, parts = None, name.split(".")
    for number in range(len(parts)):
        package, spec = spec, _find_spec_in(".".join(parts[: number + 1]), locations)
        if spec is None:
            # A package that sets `__path__` says only when it is imported where its modules are.
            return ModuleSpec(name, None) if package is not None and "__path__" in _package_source(package) else None
        locations = spec.submodule_search_locations
        if locations is None and number + 1 < len(parts):
            return None
    return spec


def _package_source(spec: ModuleSpec) -> str:
    """Return the source of a package's `__init__.py`; "" if the package has no such file."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    with open(spec.origin, errors="replace") as file:
        return file.read()


def _find_spec_in(name: str, locations: Sequence[str] | None) -> ModuleSpec | None:
    before = sys.path[:]
    sys.path.insert(0, os.getcwd())  # as for `python -m`
    try:
        for finder in sys.meta_path:
            try:
                # Given the full name, PathFinder would look for the parent package in sys.modules.
                spec = finder.find_spec(name.rpartition(".")[2] if finder is PathFinder else name, locations)
            except (ImportError, ValueError, AttributeError, KeyError):
                spec = None
            if spec is not None:
                return spec
    finally:
        sys.path[:] = before
    return None
