"""Many runs of a program would print what it prints as many times: only what ddpsim has to say of it comes through."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TextIO

from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.launching.script import Script

_OURS = "ddpsim: "


@contextmanager
def silent(scenario: Scenario) -> Iterator[None]:
    """Keep what the ranks of a program print to themselves; those of a function are left alone."""
    is_program = isinstance(scenario.program, Script)
    told = _OnlyOurs(sys.stderr)
    with redirect_stdout(told) if is_program else nullcontext(), redirect_stderr(told) if is_program else nullcontext():
        yield


class _OnlyOurs(io.TextIOBase):
    """A stream that lets our own lines through, each once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said: set[str] = set()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.startswith(_OURS) and line not in self._said:
                self._said.add(line)
                self._stream.write(f"{line}\n")
        return len(text)
