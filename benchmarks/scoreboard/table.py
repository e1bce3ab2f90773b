"""The scoreboard as tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.scoreboard.judging import Judged
from benchmarks.scoreboard.kinds import Kind

Results = Mapping[str, Sequence[Judged]]
"""What each tool, by name, said of all cases."""


def totals(results: Results) -> str:
    """A row for each tool."""
    head = ["tool", "found", "right class", "right line", "both", "false alarms", "cannot run", "median"]
    return _table(head, [[name, *_total(judged)] for name, judged in results.items()])


def by_kind(results: Results) -> str:
    """A row for each class: how many have the right class and line, of how many found, for each tool."""
    some = next(iter(results.values()))
    kinds = [kind for kind in Kind if kind is not Kind.CORRECT]
    rows = []
    for kind in kinds:
        number = sum(each.case.kind is kind for each in some)
        cells = [_strict([each for each in judged if each.case.kind is kind]) for judged in results.values()]
        rows.append([kind.label, str(number), *cells])
    return _table(["class", "programs", *results], rows)


def misses(results: Results) -> str:
    """For each tool, the names of wrong programs that passed, and of correct ones that did not."""
    lines = []
    for name, judged in results.items():
        silent = _names(each for each in judged if each.is_wrong and not each.said.alarm)
        loud = _names(each for each in judged if each.false_alarm)
        lines.append(f"- **{name}**: passed though wrong: {silent}. Alarm though correct: {loud}.")
    return "\n".join(lines)


def _total(judged: Sequence[Judged]) -> list[str]:
    wrong = sum(each.is_wrong for each in judged)
    found = sum(each.found for each in judged)
    false = sum(each.false_alarm for each in judged)
    right = (sum(each.right_class for each in judged), sum(each.right_line for each in judged))
    strict = sum(each.strict for each in judged)
    seconds = statistics.median(each.said.seconds for each in judged)
    return [
        *(f"{number} of {wrong}" for number in (found, *right, strict)),
        f"{false} of {len(judged) - wrong}",
        f"{sum(each.said.lacks for each in judged)} of {len(judged)}",
        f"{seconds * 1e3:.0f} ms",
    ]


def _strict(judged: Sequence[Judged]) -> str:
    return f"{sum(each.strict for each in judged)} / {sum(each.found for each in judged)}"


def _names(judged: Iterable[Judged]) -> str:
    templates = dict.fromkeys(_template(each.case.name) for each in judged)
    return ", ".join(f"`{name}`" for name in templates) or "none"


def _template(name: str) -> str:
    """The name without the number of the draw."""
    stem = name.removesuffix("_right")
    return stem.rpartition("_")[0] + name[len(stem) :].replace("_right", " (repaired)")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
