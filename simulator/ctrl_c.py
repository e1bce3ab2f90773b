"""Ctrl-C while something long runs: it ends what is under way, and is never lost.

Python raises KeyboardInterrupt wherever it happens to be. In a finalizer or a weak reference's callback that is printed
and forgotten, and a collection of garbage has many of them. So who loops also looks at what the handler wrote down.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class CtrlC:
    """As a context, ended by Ctrl-C without an exception: `is_pressed` says so.

    Unless it `raises`, what is inside goes on. The handler of before is back afterwards. In another thread than the
    main one, which no signal reaches, and in a process that ignores Ctrl-C, it changes no handler.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self._raises = raises
        self._presses = 0
        self._before: Any = None

    @property
    def is_pressed(self) -> bool:
        """True if it was pressed inside."""
        return self._presses > 0

    @property
    def presses(self) -> int:
        """How often it was pressed inside."""
        return self._presses

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let it raise inside."""
        before, self._raises = self._raises, True
        try:
            yield
        finally:
            self._raises = before

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was pressed: for every loop, in case the one that was raised was lost."""
        if self.is_pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> CtrlC:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(handler := signal.getsignal(signal.SIGINT)):
            self._before = handler
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        is_interrupt = kind is not None and issubclass(kind, KeyboardInterrupt)
        if is_interrupt and not self.is_pressed:  # it was not our handler that raised it
            self._presses = 1
        return is_interrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        if self._raises:
            raise KeyboardInterrupt
