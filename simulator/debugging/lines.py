"""The streams of a debugger in a rank: what is written waits for the next prompt, and lines are read elsewhere."""

from __future__ import annotations

import code
import io
from contextlib import suppress
from typing import Any

from ddpsim.simulator.debugging.session_host import SessionHost


class Lines(io.TextIOBase):
    """Both streams at once."""

    def __init__(self, session_host: SessionHost, streams: tuple[Any, Any]) -> None:
        self._session_host = session_host
        self._streams = streams
        self._written = ""

    def writable(self) -> bool:
        """True."""
        return True

    def readable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Keep it for the next prompt."""
        self._written += text
        return len(text)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """Show what was written, the prompt last, and wait for a line; "" at the end of what is typed."""
        text, self._written = self._written, ""
        try:
            return self._session_host.read(text, self._streams) + "\n"
        except EOFError:
            return ""

    def finish(self) -> None:
        """Show what was written since the last prompt."""
        text, self._written = self._written, ""
        if text:
            self._session_host.show(text, self._streams)


def _leave() -> None:
    """Python's own closes standard input, too."""
    raise SystemExit


class Console(code.InteractiveConsole):
    """Python's own, on the lines of a debugger."""

    def __init__(self, names: dict[str, Any], lines: Lines) -> None:
        super().__init__({"exit": _leave, "quit": _leave, **names})
        self._lines = lines

    def run(self) -> None:
        """Until the end of what is typed, or `exit()`."""
        with suppress(SystemExit):
            self.interact("", "")

    def raw_input(self, prompt: str = "") -> str:
        """Wait for a line."""
        self._lines.write(prompt)
        line = self._lines.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def write(self, data: str) -> None:
        """Show a text."""
        self._lines.write(data)
