"""Captures what each rank of a test prints, and collects what ranks raise.

The simulator swaps `sys.stdout` and `sys.stderr` at every context switch, so each rank that starts installs streams of
its own; its threads print there, too. Output of C++ code and subprocesses goes to pytest's capture of the whole test.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO

import pytest

from ddpsim.scenarios.pytest_plugin.raised_by_ranks import Raised

_CAPTURING = frozenset({"capsys", "capsysbinary", "capfd", "capfdbinary", "capteesys"})
"""Fixtures with which the test itself reads the printed output; then ranks print into pytest's capture."""


class RankStream(io.TextIOWrapper):
    """A standard stream of a rank, in memory."""

    def __init__(self, below: TextIO | None) -> None:
        self._below = below
        self._written = io.BytesIO()
        super().__init__(self._written, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)

    def fileno(self) -> int:
        """Return the descriptor of the process's stream: a subprocess writes there, not into the rank's text."""
        if self._below is None:
            raise io.UnsupportedOperation("fileno")
        return self._below.fileno()

    @property
    def text(self) -> str:
        """The whole text written so far."""
        return self._written.getvalue().decode(errors="replace")


class Output:
    """The printed text and the exceptions of the ranks of one run."""

    def __init__(self, item: pytest.Function) -> None:
        self._is_kept = item.config.getoption("capture", "no") in ("fd", "sys") and _CAPTURING.isdisjoint(
            item.fixturenames
        )
        self._streams: dict[int, tuple[RankStream, RankStream]] = {}
        self.raised = Raised()

    def start(self, rank: int) -> None:
        """Install a rank's streams; called on the rank before its program."""
        if self._is_kept:
            streams = RankStream(sys.stdout), RankStream(sys.stderr)
            sys.stdout, sys.stderr = self._streams[rank] = streams

    def forget(self) -> None:
        """Drop the output of the last run; called before the next one."""
        self._streams, self.raised = {}, Raised()

    def add_to(self, item: pytest.Item) -> None:
        """Add a section for each rank and stream to the report of a test."""
        for rank, streams in sorted(self._streams.items()):
            for name, stream in zip(("stdout", "stderr"), streams, strict=True):
                if stream.text:
                    item.add_report_section("call", f"{name} rank {rank}", stream.text)
