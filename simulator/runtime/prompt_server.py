"""Reads a user's input for debuggers in ranks, on the thread that started the run. That thread has nothing else to do.

Ctrl-C interrupts it, and Python can edit lines only there. So no time limit interrupts a user at a prompt, and Ctrl-C
ends the run there as elsewhere.
"""

import sys
from _thread import allocate_lock as _allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.runtime.stopwatch import Stopwatch


class DebuggerStreams(NamedTuple):
    """The streams of a debugger."""

    input: Any
    output: Any


NOBODY_TYPES = (
    "the debugger needs a terminal, and standard input is at its end: "
    "run it on a terminal, or run `ddpsim debug --commands FILE` with the commands in a file"
)

ReadLine = Callable[[str, DebuggerStreams], str]
"""A function that shows a text ending with the prompt, and returns the typed line. Raises EOFError at the end of the
input, and UsageError if there is no terminal."""


def read_edited_line(text: str, streams: DebuggerStreams) -> str:
    """Read a line as `input` does, from given streams; on a terminal the line can be edited."""
    write_text(text[: text.rfind("\n") + 1], streams)
    replaced = ReplacedAttributes()
    replaced.set_attribute(sys, "stdin", streams.input)
    replaced.set_attribute(sys, "stdout", streams.output)
    try:
        return input(text[text.rfind("\n") + 1 :])
    except EOFError:
        if not _is_terminal(streams.input):
            raise UsageError(NOBODY_TYPES) from None
        raise
    finally:
        replaced.restore_attributes()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a substitute for a stream, or a closed one
        return False


def write_text(text: str, streams: DebuggerStreams) -> None:
    """Write a text and flush it."""
    if text:
        streams.output.write(text)
        streams.output.flush()


class PromptServer:
    """Reads lines of input for the debuggers of one run whose ranks are threads."""

    def __init__(self, call_reader: Callable[[], object], read: ReadLine = read_edited_line) -> None:
        """`call_reader` wakes the thread that started the run, which then calls `serve_request`."""
        self.clock = Stopwatch()
        """The clock that measures the run's time limits."""
        self.is_open = False
        """True while a debugger is open. Communication calls are refused meanwhile."""
        self._call_reader = call_reader
        self.reader = read
        self._request: tuple[str, DebuggerStreams] | None = None
        self._line: str | Exception = ""
        self._answered = _allocate_lock()
        self._answered.acquire()
        self._is_closed = False

    @contextmanager
    def opened_debugger(self) -> Iterator[None]:
        """Mark a debugger as open, and pause the clock of the time limits."""
        was_open, self.is_open = self.is_open, True
        self.clock.pause()
        try:
            yield
        finally:
            self.is_open = was_open
            self.clock.unpause()

    def wait_for_line(self, text: str, streams: DebuggerStreams) -> str:
        """Show a text and wait for a line of input. Raises EOFError at its end, RankUnwound once the run ends."""
        self.raise_if_closed()
        self._request = text, streams
        self._call_reader()
        self._answered.acquire()
        self.raise_if_closed()
        if not isinstance(self._line, str):
            raise self._line
        return self._line

    def raise_if_closed(self) -> None:
        """Raise RankUnwound once the run ends."""
        if self._is_closed:
            raise RankUnwound

    def serve_request(self) -> None:
        """If a rank's debugger waits for a line of input, read it.

        After a KeyboardInterrupt the caller must call `close`.
        """
        if self._request is None:
            return
        try:
            self._line = self.reader(*self._request)
        except Exception as error:
            self._line = error
        self._request = None
        self._answered.release()

    def close(self) -> None:
        """Stop reading: a rank whose debugger waits for a line is ended early."""
        self._is_closed = True
        if self._request is not None:
            self._request = None
            self._answered.release()
