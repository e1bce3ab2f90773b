"""The table of `ddpsim zoo`: a row for each run, then the whole report of each unexpected run."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.cli.zoo_outcome import ZooOutcome
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario

_WIDTH = 100
_NAME_WIDTH = 48
"""The widest name column; a longer name shifts its own row only."""
_TIME_WIDTH = 5
_MARKS = {Status.AS_EXPECTED: "=", Status.OTHERWISE: "!", Status.UNKNOWN: "?", None: "-"}


class Table:
    """Formats the rows of the table, with columns as wide as their widest cell."""

    def __init__(self, pairs: Sequence[tuple[Scenario, Engine]]) -> None:
        engines = {engine for _, engine in pairs}
        self._name_width = min(_NAME_WIDTH, max(map(len, ["name", *(scenario.name for scenario, _ in pairs)])))
        self._engine_width = max(len(engine.value) for engine in engines) if len(engines) > 1 else None
        """None if there is one engine, which needs no column."""

    def head(self) -> str:
        """Return the header row."""
        return f"{self._cells('name', 'by', 'ms')}    expected"

    def row(self, outcome: ZooOutcome) -> str:
        """Return a run's row: a mark, the expected outcome, and what was found instead or why it was not run."""
        cells = self._cells(outcome.name, outcome.engine.value, f"{outcome.seconds * 1000:.0f}")
        line = f"{cells}  {_MARKS[outcome.status]} {outcome.expected}"
        if not outcome.found:
            return line
        found = f"{'not run:' if outcome.status is None else 'found'} {outcome.found}"
        return f"{line}; {found}" if len(line) + 2 + len(found) <= _WIDTH else f"{line};\n{'':{len(cells)}}    {found}"

    def _cells(self, name: str, engine: str, milliseconds: str) -> str:
        by = "" if self._engine_width is None else f"  {engine:<{self._engine_width}}"
        return f"{name:<{self._name_width}}{by}  {milliseconds:>{_TIME_WIDTH}}"


def closing(outcomes: Sequence[ZooOutcome], seconds: float) -> str:
    """Return the whole report of each unexpected run, and a line with the counts."""
    run = [outcome for outcome in outcomes if outcome.status is not None]
    surprising = [outcome for outcome in run if outcome.status is not Status.AS_EXPECTED]
    texts = [f"\n--- {each.name}, engine {each.engine.value}\n{each.text}" for each in surprising]
    surprises = sum(outcome.status is Status.OTHERWISE for outcome in outcomes)
    unknown = len(surprising) - surprises
    noun = "scenario" if len({outcome.engine for outcome in outcomes}) < 2 else "run"
    counts = [f"{_counted(len(run) - len(surprising), noun)} as expected", _counted(surprises, "surprise")]
    counts += [f"{unknown} unknown"] if unknown else []
    counts += [f"{len(outcomes) - len(run)} not run"] if len(run) < len(outcomes) else []
    return "\n".join([*texts, "", f"{', '.join(counts)}, {seconds:.1f} s"])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
