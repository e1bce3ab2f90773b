"""What ranks print, kept apart by rank, and what they raise.

A rank's standard streams are its own (the simulator swaps them at every context switch), so each rank that starts puts
its own in place, and threads that it starts print there, too. What is written below Python, by C++ or a subprocess,
goes where it always goes: to what pytest captures for the whole test.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO

import pytest

from ddpsim.scenarios.pytest_plugin.raised import Raised

_CAPTURING = frozenset({"capsys", "capsysbinary", "capfd", "capfdbinary", "capteesys"})
"""With one of these fixtures the test reads itself what was printed."""


class RankStream(io.TextIOWrapper):
    """A standard stream of a rank, in memory."""

    def __init__(self, below: TextIO | None) -> None:
        self._below = below
        self._written = io.BytesIO()
        super().__init__(self._written, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)

    def fileno(self) -> int:
        """That of the process's stream: what a subprocess writes is no text of a rank."""
        if self._below is None:
            raise io.UnsupportedOperation("fileno")
        return self._below.fileno()

    @property
    def text(self) -> str:
        """All that was written."""
        return self._written.getvalue().decode(errors="replace")


class Output:
    """What the ranks of one run print and raise."""

    def __init__(self, item: pytest.Function) -> None:
        self._is_kept = item.config.getoption("capture", "no") in ("fd", "sys") and _CAPTURING.isdisjoint(
            item.fixturenames
        )
        self._streams: dict[int, tuple[RankStream, RankStream]] = {}
        self.raised = Raised()

    def start(self, rank: int) -> None:
        """Called by a rank, before it does anything."""
        if self._is_kept:
            streams = RankStream(sys.stdout), RankStream(sys.stderr)
            sys.stdout, sys.stderr = self._streams[rank] = streams

    def forget(self) -> None:
        """Another run begins."""
        self._streams, self.raised = {}, Raised()

    def add_to(self, item: pytest.Item) -> None:
        """Add a section for each rank and stream to the report of a test."""
        for rank, streams in sorted(self._streams.items()):
            for name, stream in zip(("stdout", "stderr"), streams, strict=True):
                if stream.text:
                    item.add_report_section("call", f"{name} rank {rank}", stream.text)
