"""The labelled lines of a finding: what stands at the top of a page.

They are told by where they stand, the last lines of the text: above them are names and tracebacks of the program, which
may look like anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpsim.reports.document import Line
from ddpsim.simulator.verdict import Code, Finding

_LINE = re.compile(r" {2}(call|cycle|note|cause|try) +(\S.*)")
_ADVICE = ("cause", "try")
_WITH_WORDS_OF_OTHERS = frozenset({Code.RANK_ERROR, Code.STUCK, Code.BUDGET, Code.HAZARD_THREAD_ERROR})
"""Findings that quote what was raised, or a stack: right above their advice."""


def lines_of(finding: Finding) -> tuple[Line, ...]:
    """What ddpsim itself says in the last lines of a finding's text; () if it does not end with advice."""
    lines = list(_last_lines(finding.body))[::-1]
    if tuple(line.label for line in lines[-2:]) != _ADVICE:
        return ()
    return tuple(lines[-2:] if finding.code in _WITH_WORDS_OF_OTHERS else lines)


def _last_lines(text: str) -> Iterator[Line]:
    """From the last one up; of advice there is but one."""
    for number, line in enumerate(reversed(text.split("\n"))):
        found = _LINE.fullmatch(line)
        if found is None or (number >= len(_ADVICE) and found[1] in _ADVICE):
            return
        yield Line(found[1], found[2])
