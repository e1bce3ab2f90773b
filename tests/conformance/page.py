"""The part of docs/conformance.md that is made of the records: how each test ends on gloo, and here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.outcome import Status
from tests.conformance.records import Direction, Exceptional, Outcomes
from tests.conformance.running import ROOT
from tests.conformance.suites import SUITES, Suite

PAGE = ROOT / "docs" / "conformance.md"
BEGIN = "<!-- table of tests -->"
END = "<!-- end of the table of tests -->"
SHOWN = "process"
"""The way to simulate that the page tells of."""


@dataclass(frozen=True, slots=True)
class Row:
    """A test in the table."""

    test: str
    gloo: Status
    here: Status
    reason: str
    """Why it differs; "" if it does not."""


def write(results: str, path: Path = PAGE) -> None:
    """Put the results between their marks."""
    before, _, after = _parts(path)
    path.write_text(f"{before}{BEGIN}\n\n{results}\n{END}{after}")


def shown(path: Path = PAGE) -> str:
    """The results that the page has."""
    return _parts(path)[1].strip()


def results(gloo: Mapping[str, Outcomes], reasons: Mapping[Exceptional, str]) -> str:
    """The tables: a line for each suite, then one for each test that differs from gloo."""
    summary = ["| suite | ranks | tests | gloo passes | ddpsim passes | differ |", "|---|---|---|---|---|---|"]
    details = ["", "| suite | test that differs | gloo | ddpsim | reason |", "|---|---|---|---|---|"]
    for suite in SUITES.values():
        rows = list(_rows(suite, gloo[suite.name], reasons))
        gloo_passes = sum(row.gloo is Status.PASSED for row in rows)
        here_passes = sum(row.here is Status.PASSED for row in rows)
        differing = sum(row.gloo is not row.here for row in rows)
        cells = (f"{suite.name}: {suite.what}", suite.world_size, len(rows), gloo_passes, here_passes, differing)
        summary.append(f"| {' | '.join(map(str, cells))} |")
        details += [
            f"| {suite.name} | `{row.test}` | {row.gloo.value} | {row.here.value} | {row.reason} |"
            for row in rows
            if row.gloo is not row.here
        ]
    return "\n".join([*summary, *details])


def _rows(suite: Suite, gloo: Outcomes, reasons: Mapping[Exceptional, str]) -> Iterator[Row]:
    for test, outcome in gloo.items():
        fails, passes = (
            reasons.get(Exceptional(suite.name, SHOWN, test, direction))
            for direction in (Direction.FAILS_HERE, Direction.PASSES_HERE)
        )
        here = Status.FAILED if fails is not None else Status.PASSED if passes is not None else outcome.status
        yield Row(test, outcome.status, here, fails or passes or "")


def _parts(path: Path) -> tuple[str, str, str]:
    """Before the results, these, and after them."""
    before, begins, rest = path.read_text().partition(BEGIN)
    inside, ends, after = rest.partition(END)
    assert begins, f"{path} has no line {BEGIN!r}"
    assert ends, f"{path} has no line {END!r}"
    return before, inside, after
