"""A case: a program that was drawn, what is wrong with it, and in which lines."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.scoreboard.kinds import Kind  # it needs ddpsim, which the processes of other tools do without

MARK = "# here"
"""Ends the lines one of which a tool has to name."""


@dataclass(frozen=True, slots=True)
class Case:
    """One program, a file that defines `program(rank, size)`. It names no tool."""

    name: str
    """Its template, the number of the draw, and "right" for the repaired one: a file's name, too."""
    kind: Kind
    size: int
    """World size."""
    source: str

    @property
    def lines(self) -> frozenset[int]:
        """The numbers of the lines that are to blame, or that wait for those: any of them is the right line."""
        return frozenset(number for number, line in enumerate(self.source.splitlines(), 1) if line.endswith(MARK))


def loaded(file: Path) -> Callable[..., Any]:
    """The program of a file."""
    program: Callable[..., Any] = runpy.run_path(str(file))["program"]
    return program
