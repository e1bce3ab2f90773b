"""Ends long work on Ctrl-C or SIGTERM, and makes sure that no Ctrl-C is lost.

Python raises KeyboardInterrupt at an arbitrary line. In a finalizer or a weak reference's callback Python prints and
discards the exception, and garbage collection runs many of these. So loops also check a flag that the signal handler
sets.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class CtrlCGuard:
    """A block that Ctrl-C ends without an exception; afterwards `is_pressed` is True.

    Unless `raises` is set, the body of the block continues after Ctrl-C. The previous handler is restored at the end.
    The block changes no handler in a thread other than the main thread, which no signal reaches, or in a process that
    ignores Ctrl-C. In a `sigterm_as_ctrl_c` block SIGTERM counts as Ctrl-C, here and in the blocks around this one.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self._raises = raises
        self.press_count = 0
        """How often Ctrl-C was pressed inside the block."""
        self.raised: BaseException | None = None
        """The KeyboardInterrupt that ended the block; None if none did."""
        self._before: dict[int, Any] = {}

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

    def __enter__(self) -> "CtrlCGuard":
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            if callable(handler := signal.getsignal(number)):
                self._before[number] = handler
                signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        is_interrupt = kind is not None and issubclass(kind, KeyboardInterrupt)
        if is_interrupt and not self.is_pressed:  # another handler raised it
            self.press_count = 1
        self.raised = error if is_interrupt else None
        return is_interrupt

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.press_count += 1
        if number == signal.SIGTERM:
            with suppress(KeyboardInterrupt):
                self._before[number](number, frame)
        if self._raises:
            raise KeyboardInterrupt


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """In this block, SIGTERM ends this process's work as Ctrl-C does, and is added to the list that the block gets."""
    process, received = os.getpid(), list[int]()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a program's own child process, forked here
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with handle_signals(handle_signal, *[signal.SIGTERM] * is_free):
        yield received


@contextmanager
def handle_signals(handler: Callable[..., object] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Set the handler of these signals in this block, if it runs in the main thread, which alone can set one."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
