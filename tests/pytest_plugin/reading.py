"""Writing short tests on ranks, and reading what a session of pytest printed about them."""

import re
import textwrap
from functools import cached_property


def marked(body, mark="ranks(2)", *, name="test_it", arguments="rank"):
    """The source of a test on ranks: the marker, and below it a function of these statements."""
    return f"\n@pytest.mark.{mark}\ndef {name}({arguments}):\n{textwrap.indent(body, '    ')}\n"


HANGS = "if rank:\n    dist.barrier()"
"""The body of a test in which rank 0 does not come."""


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


class Failure:
    """The one test that failed in a session."""

    def __init__(self, result):
        (found,) = re.findall(r"^FAILED [^:]+::(.+?) - (.*)$", result.stdout.str(), re.MULTILINE)
        self.name, self.summary = found[0].replace("::", "."), found[1]
        self._result = result

    @cached_property
    def lines(self):
        """Its report."""
        return report_of(self._result, self.name)

    @cached_property
    def token(self):
        """That of its replay line, which names the test."""
        node, token = replay_of(self._result, self.name)
        assert node.endswith(f"::{self.name}")
        return token

    @property
    def stdout(self):
        """All that the session printed."""
        return self._result.stdout
