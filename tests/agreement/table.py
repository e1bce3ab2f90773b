"""The confusion table: what was done to programs, what the simulator said of them, and what gloo did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.scenarios.jobs.rank_report import RankEnding
from ddpsim.simulator.verdict import Code
from tests.agreement.comparison import Comparison

_SAID = ("passes", "mismatch", "deadlock", "error")
"""What the simulator says, by the first of its findings that fail."""

_DID = {
    RankEnding.RETURNED: "completes",
    RankEnding.HUNG: "hangs",
    RankEnding.RAISED: "raises",
    RankEnding.DIED: "dies",
}
"""What gloo does: the last of these that a rank comes to."""


def table(comparisons: Sequence[Comparison]) -> str:
    """A row for each kind of program and what the simulator said, a column for each thing that gloo did."""
    counts = Counter((each.labelled.kind, _said(each), _did(each)) for each in comparisons)
    disagreed = Counter((each.labelled.kind, _said(each)) for each in comparisons if each.disagreement)
    columns = [*_DID.values(), "disagree"]
    lines = [_line("broken", "simulator", ["programs", *columns])]
    for kind in BreakKind:
        for said in _SAID:
            did = [counts[kind, said, each] for each in _DID.values()]
            if any(did):
                lines.append(_line(kind.value, said, [str(n or "-") for n in (sum(did), *did, disagreed[kind, said])]))
    totals = [sum(n for (_, _, did), n in counts.items() if did == each) for each in _DID.values()]
    numbers = [len(comparisons), *totals, disagreed.total()]
    return "\n".join([*lines, _line("all", "", [str(n or "-") for n in numbers])])


def silences(comparisons: Sequence[Comparison]) -> str:
    """Why gloo completed what the simulator fails, and how often; "" if it never did."""
    counts = Counter(each.silence for each in comparisons if each.silence is not None)
    return "\n".join(f"{count:5}  {silence.value}" for silence, count in counts.most_common())


def disagreements(comparisons: Sequence[Comparison]) -> str:
    """A line for each; "" if there is none."""
    return "\n".join(
        f"seed {each.labelled.seed} ({each.labelled.kind.value}): {each.disagreement}"
        for each in comparisons
        if each.disagreement
    )


def _said(comparison: Comparison) -> str:
    if not comparison.found:
        return "passes"
    first = comparison.found[0]
    return "error" if first is Code.RANK_ERROR else first.value.partition(".")[0]


def _did(comparison: Comparison) -> str:
    return next(did for ending, did in reversed(_DID.items()) if ending in comparison.endings)


def _line(kind: str, said: str, cells: Sequence[str]) -> str:
    return f"{kind:<12}  {said:<9}" + "".join(f"  {cell:>9}" for cell in cells)
