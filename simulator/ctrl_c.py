"""Ends long work on Ctrl-C, and makes sure that no Ctrl-C is lost.

Python raises KeyboardInterrupt at an arbitrary line. In a finalizer or a weak reference's callback Python prints and
discards the exception, and garbage collection runs many of these. So loops also check a flag that the signal handler
sets.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CtrlCGuard:
    """A block that Ctrl-C ends without an exception; afterwards `is_pressed` is True.

    Unless `raises` is set, the body of the block continues after Ctrl-C. The previous handler is restored at the end.
    The block changes no handler in a thread other than the main thread, which no signal reaches, or in a process that
    ignores Ctrl-C.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self._raises = raises
        self.press_count = 0
        """How often Ctrl-C was pressed inside the block."""
        self._before: Any = None

    @property
    def is_pressed(self) -> bool:
        """Return True if Ctrl-C was pressed inside the block."""
        return self.press_count > 0

    @contextmanager
    def raise_on_press(self) -> Iterator[None]:
        """Let Ctrl-C raise KeyboardInterrupt in this block."""
        before, self._raises = self._raises, True
        try:
            yield
        finally:
            self._raises = before

    def raise_if_pressed(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed. Loops call this, because the first one may be lost."""
        if self.is_pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> CtrlCGuard:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(handler := signal.getsignal(signal.SIGINT)):
            self._before = handler
            signal.signal(signal.SIGINT, self._handle_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        is_interrupt = kind is not None and issubclass(kind, KeyboardInterrupt)
        if is_interrupt and not self.is_pressed:  # another handler raised it
            self.press_count = 1
        return is_interrupt

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.press_count += 1
        if self._raises:
            raise KeyboardInterrupt
