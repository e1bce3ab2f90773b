"""What came of each program, as a row, and the table that stands in docs/programs.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.compatibility.cases import Case
from tests.compatibility.comparison import difference
from tests.compatibility.running import Ran

_HEADER = (
    "| program | what it is | result | numbers | seconds | torchrun's |",
    "|---|---|---|---|---:|---:|",
)

BEGIN, END = "<!-- table of programs -->", "<!-- end of the table -->"
"""What the table stands between."""


@dataclass(frozen=True, slots=True)
class Row:
    """A program, run both ways."""

    case: Case
    gloo: Ran
    simulated: Ran

    @property
    def problem(self) -> str | None:
        """Why the program is not the same under ddpsim; None if it is."""
        if self.gloo.status != 0:
            return f"torchrun ends {_ended(self.gloo)}: {_last_line(self.gloo.said)}"
        if self.simulated.status != 0:
            return f"ends {_ended(self.simulated)}: {_reason(self.simulated.said)}"
        return None if (text := difference(self.gloo.output, self.simulated.output)) is None else f"prints {text}"

    @property
    def passes(self) -> bool:
        """True if it runs as on gloo, with the same numbers."""
        return self.problem is None


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    return "\n".join([*_HEADER, *map(_row, rows)])


def in_page(page: str, rows: Sequence[Row]) -> str:
    """A page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{_summary(rows)}\n\n{table(rows)}\n\n{END}{after}"


def _summary(rows: Sequence[Row]) -> str:
    passed = sum(row.passes for row in rows)
    ratios = sorted(row.simulated.seconds / row.gloo.seconds for row in rows if row.passes)
    text = f"{passed} of {len(rows)} commands pass."
    return f"{text} Median of the seconds, to torchrun's: {ratios[len(ratios) // 2]:.2f}." if ratios else text


def _row(row: Row) -> str:
    problem = row.problem
    cells = (
        f"`{row.case.command}`",
        row.case.about,
        "passes" if row.passes else "fails",
        "equal" if problem is None else problem.replace("|", "\\|"),
        f"{row.simulated.seconds:.1f}",
        f"{row.gloo.seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _ended(ran: Ran) -> str:
    return "not in time" if ran.status is None else f"with status {ran.status}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing said"


def _reason(said: str) -> str:
    """The finding's title and what it says, of a report; or the last line."""
    found = re.search(r"^[A-Z][A-Z ]+  \S+\n\s*(.*)", said, re.MULTILINE)
    return found[1].strip() if found else _last_line(said)
