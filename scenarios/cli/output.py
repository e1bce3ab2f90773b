"""What the commands print: plain text, coloured on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from scenarios.model import Scenario

Each = TypeVar("Each")

_STYLES = (
    (r"(?m)^(?:DEADLOCK|MISMATCH|ERROR|STUCK|DIVERGENCE)\b|^not as expected", "bold red"),
    (r"(?m)^(?:HAZARD|UNKNOWN)\b|^unknown", "bold yellow"),
    (r"(?m)^PASS\b|^as expected", "bold green"),
    (r"(?m)^  (?:cause|try|note|cycle|replay) ", "bold"),
    (r"(?m)^  ranks? [\d, -]+", "cyan"),
    (r"(?m)^--- .*$", "bold"),
    (r"(?m)(?<=\d  )! .*$", "bold red"),
)


def show(text: str) -> None:
    """Print a text at once, with colours if it goes to a terminal."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    # Imported here: a pipe needs no colours, and a mistyped option no rich.
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    Console().print(styled, soft_wrap=True)


def note(text: str) -> None:
    """Say a line beside what was asked for: on stderr, where it is in nobody's way."""
    print(f"ddpsim: {text}", file=sys.stderr)


def show_scenarios(scenarios: Mapping[str, Scenario]) -> None:
    """A line for each scenario: its name, what is expected of it, its summary."""
    texts = [scenario.expected.text(scenario.world_size) for scenario in scenarios.values()]
    name_width, text_width = (max(map(len, column)) for column in (scenarios, texts))
    show(
        "\n".join(
            f"{name:<{name_width}}  {text:<{text_width}}  {scenario.summary}{_under_ddp(scenario)}"
            for (name, scenario), text in zip(scenarios.items(), texts, strict=True)
        )
    )


def _under_ddp(scenario: Scenario) -> str:
    other = (scenario.expected_under_ddp or scenario.expected).text(scenario.world_size)
    return "" if other == scenario.expected.text(scenario.world_size) else f"  [under ddp: {other}]"


def followed(each: Iterable[Each], total: int) -> Iterable[Each]:
    """The same, as it comes; on a terminal all at the end, and until then a bar shows how far it is."""
    if not sys.stderr.isatty():
        return each
    from rich.console import Console
    from rich.progress import track

    # Without a thread that refreshes it: what runs meanwhile is told from one rank to the next.
    return list(track(each, "running", total=total, console=Console(stderr=True), transient=True, auto_refresh=False))
