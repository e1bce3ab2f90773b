"""The part of docs/conformance.md that is made: what came of each test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conformance.outcome import Outcome, Status
from tests.conformance.records import Direction, Exceptional, Outcomes
from tests.conformance.running import ROOT
from tests.conformance.suites import SUITES, Suite

PAGE = ROOT / "docs" / "conformance.md"
BEGIN = "<!-- table of tests -->"
END = "<!-- end of the table of tests -->"


def write(results: str, path: Path = PAGE) -> None:
    """Put the results between their marks."""
    text = path.read_text()
    before, found, rest = text.partition(BEGIN)
    _, ends, after = rest.partition(END)
    assert found, f"{path} has no line {BEGIN!r}"
    assert ends, f"{path} has no line {END!r}"
    path.write_text(f"{before}{BEGIN}\n\n{results}\n{END}{after}")


def results(
    gloo: Mapping[str, Outcomes], here: Mapping[str, Outcomes], reasons: Mapping[Exceptional, str], way: str
) -> str:
    """The tables: one line a suite, then one a test. `here` is what came of them by `way`."""
    summary = ["| suite | ranks | tests that ran | gloo passes | ddpsim passes | differ |", "|---|---|---|---|---|---|"]
    details: list[str] = []
    for suite in map(SUITES.__getitem__, here):
        rows = list(_rows(suite, gloo[suite.name], here[suite.name], reasons, way))
        passed = Counter(place for row in rows for place, status in row[1:3] if status is Status.PASSED)
        differing = sum(row[1][1] is not row[2][1] for row in rows)
        summary.append(
            f"| {suite.name}: {suite.what} | {suite.world_size} | {len(rows)} | {passed['gloo']} | {passed['here']} | "
            f"{differing} |"
        )
        details += [
            f"\n### {suite.name}\n",
            "| test | ranks | gloo | ddpsim | reason |",
            "|---|---|---|---|---|",
            *(
                f"| `{test}` | {suite.world_size} | {there[1].value} | {ours[1].value} | {reason} |"
                for test, there, ours, reason in rows
            ),
        ]
    return "\n".join([*summary, *details]) + "\n"


_Row = tuple[str, tuple[str, Status], tuple[str, Status], str]


def _rows(suite: Suite, gloo: Outcomes, here: Outcomes, reasons: Mapping[Exceptional, str], way: str) -> Iterator[_Row]:
    """Test, how it ended in both places, and why it differs or fails in both. Tests skipped in both are left out."""
    skipped = Outcome(Status.SKIPPED)
    for test in sorted({*gloo, *here}):
        there, ours = gloo.get(test, skipped), here.get(test, skipped)
        if there.status is ours.status is Status.SKIPPED:
            continue
        known = [reasons.get(Exceptional(suite.name, way, test, direction), "") for direction in Direction]
        reason = next(filter(None, known), "") or _cell(there.why)
        yield test, ("gloo", there.status), ("here", ours.status), reason


def _cell(text: str) -> str:
    """A text of an error inside a table."""
    return f"`{text.replace('|', '/').replace('`', chr(39))}`" if text else ""
