"""The desk: lines that debuggers in ranks wait for are read by the thread that started the execution.

That thread has nothing else to do, is the one that Ctrl-C interrupts, and the one in which Python edits lines. So
who types is never interrupted by a limit, and Ctrl-C at a prompt ends the execution as it does elsewhere.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.replaced import Replaced
from ddpsim.simulator.runtime.stopwatch import Stopwatch


class Streams(NamedTuple):
    """Where a debugger reads and writes."""

    input: Any
    output: Any


NOBODY_TYPES = (
    "a debugger waits for a command, and standard input is at its end and no terminal, expected somebody to type: "
    "run it on a terminal, or run `ddpsim debug --commands FILE` with the commands in a file"
)

ReadLine = Callable[[str, Streams], str]
"""Shows a text, the last line of which is the prompt, and returns what is typed. Raises EOFError at the end of that,
and UsageError where nobody can type."""


def read_line(text: str, streams: Streams) -> str:
    """As `input` does it on streams that are not those of the process; with a terminal the line can be edited."""
    show(text[: text.rfind("\n") + 1], streams)
    replaced = Replaced()
    replaced.put(sys, "stdin", streams.input)
    replaced.put(sys, "stdout", streams.output)
    try:
        return input(text[text.rfind("\n") + 1 :])
    except EOFError:
        if not _is_terminal(streams.input):
            raise UsageError(NOBODY_TYPES) from None
        raise
    finally:
        replaced.put_back()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # what stands for a stream, or one that is closed
        return False


def show(text: str, streams: Streams) -> None:
    """Write a text at once."""
    if text:
        streams.output.write(text)
        streams.output.flush()


class _Request(NamedTuple):
    text: str
    streams: Streams


class PromptServer:
    """Of one execution whose ranks are threads."""

    def __init__(self, call_reader: Callable[[], object], read: ReadLine = read_line) -> None:
        """`call_reader` wakes up the thread that started the execution, which calls `serve` then."""
        self.clock = Stopwatch()
        """That of the limits."""
        self.is_open = False
        """A debugger has the word: nobody communicates."""
        self._call_reader = call_reader
        self._read = read
        self._request: _Request | None = None
        self._line: str | Exception = ""
        self._answered = _allocate_lock()
        self._answered.acquire()
        self._is_closed = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While a debugger has the word."""
        was_open, self.is_open = self.is_open, True
        self.clock.stop()
        try:
            yield
        finally:
            self.is_open = was_open
            self.clock.go_on()

    def read_by(self, read: ReadLine) -> None:
        """Let lines be read otherwise."""
        self._read = read

    # --- in a rank ----------------------------------------------------------------------------------------------------

    def read(self, text: str, streams: Streams) -> str:
        """Show a text and wait for a line. Raises EOFError where there is none, RankUnwound once the run ends."""
        self.check()
        self._request = _Request(text, streams)
        self._call_reader()
        self._answered.acquire()
        self.check()
        if not isinstance(self._line, str):
            raise self._line
        return self._line

    def check(self) -> None:
        """Raise RankUnwound once the run ends."""
        if self._is_closed:
            raise RankUnwound

    # --- in the thread that started the execution ---------------------------------------------------------------------

    def serve(self) -> None:
        """Read the line that a rank waits for, if one does. KeyboardInterrupt comes through: then call `close`."""
        if self._request is None:
            return
        try:
            self._line = self._read(*self._request)
        except Exception as error:
            self._line = error
        self._request = None
        self._answered.release()

    def close(self) -> None:
        """Nobody reads any more: who waits for a line leaves its program."""
        self._is_closed = True
        if self._request is not None:
            self._request = None
            self._answered.release()
