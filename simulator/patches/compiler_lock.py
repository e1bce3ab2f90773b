"""The lock of torch's compiler: one rank compiles at a time, and who waits for its turn lets the others run.

torch makes it while the compiler is imported, for all threads of a process, and keeps it for a whole compilation. In
the middle of one another thread may be let run: inductor waits for threads that it has started. That one would block in
torch's own lock with the baton in its hand, and the run would be stuck. A lock for each rank would not do: what a
compilation configures, it configures for the process.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from ddpsim.simulator.runtime.replaced import Replaced

_MODULE = "torch._dynamo.convert_frame"


class CompilerLock:
    """Takes the place of torch's compiler lock during a run."""

    def __init__(self) -> None:
        self._replaced = Replaced()
        self._of_run: Any = None
        """Made by the rank that compiles first, on its thread, so that waiting for it is a wait of the simulation."""

    def install(self) -> None:
        """Replace torch's lock, if the compiler is loaded. May be called again."""
        module: Any = sys.modules.get(_MODULE)
        if module is not None and module.compile_lock is not self:
            self._replaced.put(module, "compile_lock", self)

    def uninstall(self) -> None:
        """Restore torch's lock."""
        self._replaced.put_back()

    def __enter__(self) -> Any:
        if self._of_run is None:
            self._of_run = threading.RLock()
        return self._of_run.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._of_run.__exit__(*exception)
