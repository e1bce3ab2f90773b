"""The input and output streams of a debugger in a rank. Written text is kept until the debugger prompts for input."""

import code
import io
from contextlib import suppress
from typing import Any

from ddpsim.simulator.debugging.session_host import SessionHost


class DebuggerStream(io.TextIOBase):
    """The input and output stream of a debugger in a rank. The run's session host reads from and writes to the user."""

    def __init__(self, session_host: SessionHost, streams: tuple[Any, Any]) -> None:
        self._session_host = session_host
        self._streams = streams
        self._written = ""

    def write(self, text: str) -> int:
        """Keep a text until the debugger prompts for input."""
        self._written += text
        return len(text)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """Show the kept text, which ends with the prompt, and wait for a typed line; "" at the end of the input."""
        text, self._written = self._written, ""
        try:
            return self._session_host.read_line(text, self._streams) + "\n"
        except EOFError:
            return ""

    def flush_output(self) -> None:
        """Show the text that was written after the last prompt."""
        text, self._written = self._written, ""
        if text:
            self._session_host.show_text(text, self._streams)


def _exit_console() -> None:
    """End the interactive console. Python's own `exit` would close standard input, too."""
    raise SystemExit


class DebuggerConsole(code.InteractiveConsole):
    """Python's interactive console on the streams of a debugger."""

    def __init__(self, names: dict[str, Any], lines: DebuggerStream) -> None:
        super().__init__({"exit": _exit_console, "quit": _exit_console, **names})
        self._lines = lines

    def run(self) -> None:
        """Run until the end of the input, or `exit()`."""
        with suppress(SystemExit):
            self.interact("", "")

    def raw_input(self, prompt: str = "") -> str:
        """Show the prompt and wait for a typed line."""
        self._lines.write(prompt)
        line = self._lines.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def write(self, data: str) -> None:
        """Show a text."""
        self._lines.write(data)
