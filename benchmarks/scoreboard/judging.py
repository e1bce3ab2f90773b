"""Whether what a tool said is right: the verdict, the class, the line.

As MPI-BugBench has it, an alarm alone is not enough: of a strict hit the class and a line are right, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.scoreboard.case import Case
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.tool import Said


@dataclass(frozen=True, slots=True)
class Judged:
    """What a tool said of one case, and what is right about it."""

    case: Case
    said: Said

    @property
    def is_wrong(self) -> bool:
        """Whether the program is."""
        return self.case.kind is not Kind.CORRECT

    @property
    def found(self) -> bool:
        """An alarm for a wrong program."""
        return self.is_wrong and self.said.alarm and not self.said.lacks

    @property
    def false_alarm(self) -> bool:
        """An alarm for a correct one."""
        return not self.is_wrong and self.said.alarm and not self.said.lacks

    @property
    def right_class(self) -> bool:
        """The alarm says what is wrong."""
        if not self.found:
            return False
        if self.said.codes:
            return not self.said.codes.isdisjoint(self.case.kind.codes)
        return self.case.kind.words.search(self.said.text) is not None

    @property
    def right_line(self) -> bool:
        """The alarm names one of the lines."""
        return self.found and not self.case.lines.isdisjoint(lines_named(self.said.text, self.case.name))

    @property
    def strict(self) -> bool:
        """Class and line."""
        return self.right_class and self.right_line


def lines_named(text: str, name: str) -> frozenset[int]:
    """The lines of a file that a text names, as `name.py:7` or as a traceback does."""
    found = re.findall(rf'\b{re.escape(name)}\.py(?::|", line )(\d+)', text)
    return frozenset(map(int, found))
