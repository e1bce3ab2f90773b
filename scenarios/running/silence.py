"""Hide what a user's program prints while it runs many times. Only ddpsim's own messages are shown."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.launching.script import Script


@contextmanager
def hide_program_output(scenario: Scenario) -> Iterator[None]:
    """Hide the output of a program's ranks in this block. If the scenario is a function, its output is shown."""
    if not isinstance(scenario.program, Script):
        yield
        return
    ours = _OwnMessagesOnly(sys.stderr)
    with redirect_stdout(ours), redirect_stderr(ours):
        yield


class _OwnMessagesOnly(io.TextIOBase):
    """A stream that prints only ddpsim's own lines, each once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said: set[str] = set()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.startswith("ddpsim: ") and line not in self._said:
                self._said.add(line)
                self._stream.write(f"{line}\n")
        return len(text)
