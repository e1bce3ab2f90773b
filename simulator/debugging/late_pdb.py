"""Replaces `pdb.Pdb` during a run, for `breakpoint`, `pdb.set_trace`, `pdb.post_mortem` and pytest.

These all look the class up in the module `pdb`. Importing pdb takes 30 ms, so it is not imported here: an import hook
replaces the class when the program imports pdb.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ddpsim.simulator.debugging.session_host import SessionHost
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


class PdbReplacement(MetaPathFinder):
    """Replaces the class `pdb.Pdb` by the debugger class of one run."""

    def __init__(self, session_host: SessionHost) -> None:
        self._session_host = session_host
        self._replaced = ReplacedAttributes()

    def install(self) -> None:
        """Replace `pdb.Pdb` now, or when pdb is imported."""
        module = sys.modules.get("pdb")
        if module is not None:
            self._replace_class(module)
        else:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Restore `pdb.Pdb`. May be called twice."""
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
        if self._replaced:
            self._replaced.restore_attributes()
            _clear_pytest_debugger_cache()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of pdb, with a loader that also replaces `pdb.Pdb`."""
        if fullname != "pdb":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # the loader is an ordinary one from here on
                execute(module)
                self._replace_class(module)

            loader.exec_module = exec_module
        return spec

    def _replace_class(self, module: Any) -> None:
        if not self._replaced:
            self._replaced.set_attribute(module, "Pdb", debugger_class(self._session_host))
            _clear_pytest_debugger_cache()


def _clear_pytest_debugger_cache() -> None:
    """Clear pytest's cache of the debugger class that it derived from `pdb.Pdb`."""
    debugging: Any = sys.modules.get("_pytest.debugging")
    if debugging is not None:
        debugging.pytestPDB._wrapped_pdb_cls = None


def debugger_class(session_host: SessionHost) -> type[Any]:
    """Return the debugger class of a run, a subclass of `pdb.Pdb`."""
    importlib.import_module("pdb")  # first: the import hook calls this function again
    from ddpsim.simulator.debugging.rank_debugger import RankDebugger

    return type("Pdb", (RankDebugger,), {"session_host": session_host})
