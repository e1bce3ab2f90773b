"""Replaces `pdb.Pdb` during a run, for `breakpoint`, `pdb.set_trace`, `pdb.post_mortem` and pytest.

These all look the class up in the module `pdb`. Importing pdb takes 30 ms, so it is not imported here: an import hook
replaces the class when the program imports pdb.
"""

import importlib
import sys
from typing import Any

from ddpsim.simulator.debugging.session_host import SessionHost
from ddpsim.simulator.runtime.late_modules import ImportWatch, call_with_module
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


class PdbReplacement:
    """Replaces the class `pdb.Pdb` by the debugger class of one run."""

    def __init__(self, session_host: SessionHost) -> None:
        self._session_host = session_host
        self._replaced = ReplacedAttributes()
        self._watch: ImportWatch | None = None

    def install(self) -> None:
        """Replace `pdb.Pdb` now, or when pdb is imported."""
        self._watch = call_with_module("pdb", self._replace_class)

    def uninstall(self) -> None:
        """Restore `pdb.Pdb`. May be called twice."""
        if self._watch is not None:
            self._watch.uninstall()
            self._watch = None  # each refers to the other: an execution goes at once
        if self._replaced:
            self._replaced.restore_attributes()
            _clear_pytest_debugger_cache()

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
