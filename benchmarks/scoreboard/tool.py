"""What a tool is to the scoreboard: something that runs a program and says something, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.scoreboard.case import Case


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool said of one program."""

    alarm: bool
    """It says that something is wrong, or is stuck."""
    text: str
    """All that a user would read."""
    codes: frozenset[str] = frozenset()
    """Names of findings, of a tool that has such; of others the words of the text are searched."""
    seconds: float = 0.0
    lacks: bool = False
    """The tool has not got what the program calls: that is no alarm."""


class Tool(Protocol):
    """A column of the table."""

    name: str
    at_once: int
    """How many programs it may run beside each other."""

    def judge(self, case: Case, file: Path) -> Said:
        """Run the program in `file`, which holds the source of the case. Bounded in time, raises nothing."""
        ...
