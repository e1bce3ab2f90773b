"""Replaces `pdb.Pdb` while an execution runs, for `breakpoint`, `pdb.set_trace`, `pdb.post_mortem` and pytest.

These all look the class up in the module `pdb`. Importing pdb takes 30 ms, so it is not imported here: an import hook
replaces the class when the program imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ddpsim.simulator.debugging.session_host import SessionHost
from ddpsim.simulator.runtime.replaced import Replaced


class LatePdb:
    """Replaces pdb's debugger class by that of one execution."""

    def __init__(self, session_host: SessionHost) -> None:
        self._session_host = session_host
        self._finder: _Finder | None = None
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace `pdb.Pdb` now, or when pdb is imported."""
        module = sys.modules.get("pdb")
        if module is not None:
            self._replace(module)
        else:
            self._finder = _Finder(self._replace)
            sys.meta_path.insert(0, self._finder)

    def uninstall(self) -> None:
        """Restore `pdb.Pdb`. May be called twice."""
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self._finder]
        self._finder = None
        if self._replaced:
            self._replaced.put_back()
            _let_pytest_ask_again()

    def _replace(self, module: Any) -> None:
        if not self._replaced:
            self._replaced.put(module, "Pdb", made_for(self._session_host))
            _let_pytest_ask_again()


def _let_pytest_ask_again() -> None:
    """Clear pytest's cache of the debugger class that it derived from `pdb.Pdb`."""
    debugging: Any = sys.modules.get("_pytest.debugging")
    if debugging is not None:
        debugging.pytestPDB._wrapped_pdb_cls = None


def made_for(session_host: SessionHost) -> type[Any]:
    """Return the debugger class of an execution."""
    importlib.import_module("pdb")  # first: the import hook calls this function again
    from ddpsim.simulator.debugging.rank_debugger import RankDebugger

    return type("Pdb", (RankDebugger,), {"session_host": session_host})


class _Finder(MetaPathFinder):
    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pdb":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """Loads pdb, then calls a function that changes it."""

    def __init__(self, loader: Loader, then: Callable[[Any], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
