"""Somebody at a terminal: a pseudo-terminal in this process, and a thread that types when it sees a prompt."""

import os
import pty
import re
import select
import signal
import sys
import termios
import threading
from contextlib import contextmanager

PROMPT = re.compile(r"\((rank [^)\n]*|Pdb)\) $")
CTRL_C, CTRL_D = "^C", "^D"


class Typist:
    """Types lines, one at each prompt, and reads what is printed; at the end of them Ctrl-D."""

    def __init__(self, lines, before_each):
        self._before_each = before_each
        self._lines = list(lines)
        self._written = ""
        self._seen = 0
        self._is_over = threading.Event()
        self._master, self._slave = pty.openpty()
        settings = termios.tcgetattr(self._slave)
        settings[1] &= ~termios.OPOST  # as it is written, without carriage returns
        termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        self._thread = threading.Thread(target=self._type, daemon=True)

    @property
    def transcript(self):
        """All that stood on the terminal."""
        return self._written

    @contextmanager
    def at_the_terminal(self):
        """This process has the terminal for its streams."""
        before = sys.stdin, sys.stdout
        with open(self._slave, closefd=False) as reads, open(self._slave, "w", closefd=False) as writes:
            sys.stdin, sys.stdout = reads, writes
            self._thread.start()
            try:
                yield self
            finally:
                sys.stdin, sys.stdout = before
                writes.flush()
                self._is_over.set()
                self._thread.join()
                os.close(self._master)
                os.close(self._slave)

    def _type(self):
        while not self._is_over.is_set() or self._has_more():
            if self._has_more():
                self._written += os.read(self._master, 1 << 16).decode()
            elif PROMPT.search(self._written[self._seen :]):
                self._seen = len(self._written)
                self._press(self._lines.pop(0) if self._lines else CTRL_D)

    def _has_more(self):
        return bool(select.select([self._master], [], [], 0.01)[0])

    def _press(self, line):
        if self._before_each is not None:
            self._before_each()
        if line == CTRL_C:
            while not self._is_over.wait(0.05):  # again, as it is lost just before Python reads
                os.kill(os.getpid(), signal.SIGINT)
        else:
            os.write(self._master, b"\x04" if line == CTRL_D else line.encode() + b"\n")


@contextmanager
def typed(*lines, before_each=None):
    """While lines are typed at each prompt that comes; before each, `before_each` is called."""
    typist = Typist(lines, before_each)
    with typist.at_the_terminal():
        yield typist
