"""Programs: a file or a module that each rank runs as `__main__`, as torchrun and python do."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from ddpsim.simulator.errors import UsageError

MASTER_PORT = 29_500
"""torchrun's own; nobody listens there, as rendezvous and stores are the simulator's."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command line without the `python`: a file or `-m` and a module, and what is theirs.

    Called with a rank, in a process of that rank's own, it runs there, and does not return before it has ended.
    """

    command: tuple[str, ...]
    counts_ranks: bool = False
    """If it starts its ranks itself, there are as many as it says."""

    @property
    def name(self) -> str:
        """As one types it in a shell."""
        return shlex.join(self.command)

    @property
    def is_module(self) -> bool:
        """True for `-m MODULE`."""
        return self.command[0] == "-m"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The program's own."""
        return self.command[2:] if self.is_module else self.command[1:]

    def check(self) -> None:
        """Raise UsageError if there is nothing that could run."""
        if self.is_module:
            self._check_module()
            return
        path = self.command[0]
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

    def _check_module(self) -> None:
        if len(self.command) < 2:
            raise UsageError("-m is the last word, expected a module after it: name one")
        name = self.command[1]
        if _found(name) is None:
            raise UsageError(
                f"there is no module {name!r}, expected one that `python -m {name}` finds: correct the name"
            )

    def file(self) -> str | None:
        """The file of Python that it is; None if there is none."""
        path: str | None = self.command[0]
        if self.is_module:
            found = _found(self.command[1])
            if found is not None and found.submodule_search_locations is not None:
                found = _found(f"{self.command[1]}.__main__")
            path = None if found is None else found.origin
        return path if path is not None and path.endswith(".py") else None

    def text(self) -> str:
        """Its source; "" if it has none."""
        file = self.file()
        return "" if file is None else _source(file)

    def __call__(self, rank: int) -> None:
        """Run it, as `__main__`. SystemExit with 0 or None is its end, as it is for Python."""
        __tracebackhide__ = True
        try:
            if self.is_module:
                self._run_module()
            else:
                self._run_file()
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise

    def _run_module(self) -> None:
        sys.argv = [self.command[1], *self.arguments]
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


def _found(module: str) -> ModuleSpec | None:
    """Where a module is. The packages around it are not imported: that is for the ranks, which have their numbers."""
    package, *others = module.split(".")
    here = sys.path[:]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(package)
        for name in others:
            if found is None or found.submodule_search_locations is None:
                return None
            # Without the package's name: with it, a folder without __init__.py looks for its parent in sys.modules.
            found = PathFinder.find_spec(name, found.submodule_search_locations)
    except (ImportError, ValueError, AttributeError):
        return None
    finally:
        sys.path[:] = here
    return found


def _source(path: str) -> str:
    with tokenize.open(path) as file:
        return file.read()


def environment_of_function(rank: int, world_size: int) -> dict[str, str]:
    """What a function finds, as on ranks that are threads: how every launcher tells a rank which one it is."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(MASTER_PORT),
    }


def environment(rank: int, world_size: int) -> dict[str, str]:
    """What torchrun sets for a rank of one node (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
    return {
        **environment_of_function(rank, world_size),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "ddpsim",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "1",
    }


def is_program(words: Sequence[str]) -> bool:
    """True if a command line begins with a file of Python or with `-m`."""
    return bool(words) and (words[0] == "-m" or (words[0].endswith(".py") and ":" not in words[0]))
