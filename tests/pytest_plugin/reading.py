"""Reading what a session of pytest printed."""

import re


def report_of(result, name):
    """The lines of the report of a failing test, up to what was captured."""
    lines = result.outlines
    start = next(index for index, line in enumerate(lines) if re.fullmatch(f"_+ {re.escape(name)} _+", line))
    ends = [index for index, line in enumerate(lines) if index > start and _ENDS.match(line)]
    return lines[start + 1 : ends[0] if ends else len(lines)]


_ENDS = re.compile(r"(_{4,} .* _{4,}|={4,} .*|-+ Captured .*)$")


def replay_of(result, name):
    """The node id and the token of the last line of a report."""
    *_, last = report_of(result, name)
    found = re.fullmatch(r"  replay  pytest (?P<id>\S+|'[^']+') --ddpsim-replay (?P<token>s1:\S+)", last)
    assert found, last
    return found["id"].strip("'"), found["token"]
