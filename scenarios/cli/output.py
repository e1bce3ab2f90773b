"""What the commands print: plain text, coloured on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scenarios.model import Scenario
    from simulator import Result

_STYLES = (
    (r"(?m)^(?:DEADLOCK|MISMATCH|ERROR|STUCK|DIVERGENCE)\b|^not as expected", "bold red"),
    (r"(?m)^(?:HAZARD|UNKNOWN)\b|^unknown", "bold yellow"),
    (r"(?m)^PASS\b|^as expected", "bold green"),
    (r"(?m)^  (?:cause|try|note|cycle|replay) ", "bold"),
    (r"(?m)^  ranks? [\d, -]+", "cyan"),
)


def show_scenarios(scenarios: Iterable[Scenario]) -> None:
    """A line for each scenario: its name, what is expected of it, its summary."""
    rows = [(s.name, s.expected.text(s.world_size), s.summary) for s in scenarios]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    _print("\n".join(f"{name:<{widths[0]}}  {expected:<{widths[1]}}  {summary}" for name, expected, summary in rows))


def show_result(scenario: Scenario, result: Result, how: str, *, seconds: float) -> None:
    """What was run, the whole text of the result, and whether it is what was expected."""
    _print(f"{scenario.name}  world size {result.world_size}  {how}  {seconds * 1000:.0f} ms\n\n{result}\n")
    _print(_conclusion(scenario, result))


def _conclusion(scenario: Scenario, result: Result) -> str:
    from scenarios.model import found_text

    found = found_text(result)
    if scenario.expected.is_met_by(result):
        return f"as expected: {found}"
    word = "unknown" if result.verdict.value == "unknown" else "not as expected"
    return f"{word}: found {found}; expected {scenario.expected.text(result.world_size)}"


def _print(text: str) -> None:
    if not sys.stdout.isatty():
        print(text)
        return
    # Imported here: a pipe needs no colours, and a mistyped option no rich.
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    Console().print(styled, soft_wrap=True)
