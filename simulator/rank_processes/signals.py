"""The signals that the coordinator sends to a running rank: real-time signals, which programs do not use."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TELL_STACK = signal.SIGRTMIN + 11
"""Write where the running thread stands into a file, by Python."""
TELL_NATIVE_STACK = signal.SIGRTMIN + 12
"""Write the stacks of all threads into the file, without Python's help, as a program in native code needs it."""
UNWIND_PROGRAM = signal.SIGRTMIN + 13
"""Leave the program, by an exception in the main thread."""


@contextmanager
def ends_told() -> Iterator[None]:
    """While the system tells how processes end, which it does not where the caller ignores SIGCHLD."""
    is_to = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN and threading.current_thread() is threading.main_thread()
    if is_to:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_to:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
