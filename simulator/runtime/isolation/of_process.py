"""State that all rank threads share, and that is restored after the run.

It is not swapped from rank to rank: the working folder, the root logger's handlers and levels, the recursion limit, and
`threading.excepthook`. Handlers that the run has added are closed, as at the end of a process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress


class OfProcess:
    """The state of the process before a run, to be restored after it."""

    def __init__(self) -> None:
        self._folder = _folder()
        self._handlers = list(logging.root.handlers)
        self._level, self._disabled = logging.root.level, logging.root.manager.disable
        self._recursion = sys.getrecursionlimit()
        self._excepthook = threading.excepthook

    def install(self) -> None:
        """Do nothing: the state was read when this object was made."""

    def uninstall(self) -> None:
        """Restore the state. May be called twice."""
        if self._folder and self._folder != _folder():
            with suppress(OSError):  # the folder does not exist any more
                os.chdir(self._folder)
        for handler in [each for each in logging.root.handlers if each not in self._handlers]:
            handler.close()
        logging.root.handlers[:] = self._handlers
        if logging.root.level != self._level:
            logging.root.setLevel(self._level)
        if logging.root.manager.disable != self._disabled:
            logging.disable(self._disabled)
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
        threading.excepthook = self._excepthook


def _folder() -> str:
    """Return the working folder; "" if it does not exist any more."""
    try:
        return os.getcwd()
    except OSError:
        return ""
