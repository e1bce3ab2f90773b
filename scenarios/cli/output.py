"""What the commands print: plain text, coloured on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from scenarios.model import Scenario

Each = TypeVar("Each")

_WIDTH = 120
"""A line of a list on a terminal that is not wider."""

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
    """A line for each scenario: its name, what is expected of it, its summary.

    On a terminal the lines are cut to its width, and the join matrix stands under a heading of its own; a pipe gets
    whole lines and nothing else.
    """
    texts = {name: scenario.expected.text(scenario.world_size) for name, scenario in scenarios.items()}
    name_width, text_width = (max(map(len, column)) for column in (texts, texts.values()))
    lines = {
        name: (f"{name:<{name_width}}  {text:<{text_width}}  ", scenarios[name].summary, _under_ddp(scenarios[name]))
        for name, text in texts.items()
    }
    if not sys.stdout.isatty():
        show("\n".join(map("".join, lines.values())))
        return
    width = max(_WIDTH, shutil.get_terminal_size().columns)
    matrix = [name for name, scenario in scenarios.items() if "join-matrix" in scenario.tags]
    others = [name for name in scenarios if name not in matrix]
    blocks = ["\n".join(_cut(*lines[name], width) for name in names) for names in (others, matrix) if names]
    heads = ("--- bugs, and controls\n", "\n--- the join matrix: what join is there for\n")
    show("\n".join(map("".join, zip(heads, blocks, strict=True))) if len(blocks) > 1 else blocks[0])


def _cut(start: str, summary: str, end: str, width: int) -> str:
    """A line of at most so many columns, if what stands around the summary leaves it room."""
    room = width - len(start) - len(end)
    return (
        start
        + (summary if len(summary) <= room else f"{summary[: max(room - 1, 0)].rstrip()}\N{HORIZONTAL ELLIPSIS}")
        + end
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
