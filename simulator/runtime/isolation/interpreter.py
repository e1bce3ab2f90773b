"""What a program replaces in `sys`: the standard streams, the arguments and the exception hook.

`contextlib.redirect_stdout` puts the stream back on exit, so interleaved ranks would put back each other's; and
`init_process_group` wraps the exception hook once more at each call.
"""

from __future__ import annotations

import sys
from typing import Any

InterpreterState = tuple[object, object, object, list[str], object]


class Interpreter:
    """`sys.stdin`, `stdout`, `stderr`, `argv` and `excepthook`. Ranks start with the host's (`argv`: a copy)."""

    def __init__(self) -> None:
        self._sys: dict[str, Any] = vars(sys)
        self._host = self.save()

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> InterpreterState:
        """Return what the host has."""
        stdin, stdout, stderr, argv, excepthook = self._host
        return (stdin, stdout, stderr, argv.copy(), excepthook)

    def save(self) -> InterpreterState:
        """Return what is in place."""
        module = self._sys
        return (module["stdin"], module["stdout"], module["stderr"], module["argv"], module["excepthook"])

    def load(self, state: InterpreterState) -> None:
        """Put streams, arguments and hook in place."""
        module = self._sys
        module["stdin"], module["stdout"], module["stderr"], module["argv"], module["excepthook"] = state

    def uninstall(self) -> None:
        """Nothing to undo."""
