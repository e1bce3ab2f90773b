"""What the commands print: plain text, coloured on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.text import Text

    from ddpsim.scenarios.files.catalogue import Listed
    from ddpsim.scenarios.model import Expectation

Each = TypeVar("Each")

_WIDTH = 120
"""A line of a list on a terminal that is not wider."""


def show(text: str) -> None:
    """Print a text at once, with colours if it goes to a terminal."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    # Imported here: a pipe needs no colours, and a mistyped option no rich.
    from rich.text import Text

    from ddpsim.reports.forms.highlight import STYLES

    styled = Text(text)
    for pattern, style in STYLES:
        styled.highlight_regex(pattern, style)
    show_styled(styled)


def show_styled(text: Text) -> None:
    """Print a text at once; its colours show if it goes to a terminal, unless NO_COLOR is set."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(text, soft_wrap=True)
    else:
        print(text.plain, flush=True)


def note(text: str) -> None:
    """Say a line beside what was asked for: on stderr, where it is in nobody's way."""
    print(f"ddpsim: {text}", file=sys.stderr)


def show_scenarios(scenarios: Mapping[str, Listed]) -> None:
    """A line for each scenario: its name, what is expected of it, its summary.

    On a terminal the expectation is the code only, lines are cut to the width, and the join matrix stands apart; a pipe
    gets whole lines and nothing else.
    """
    if not sys.stdout.isatty():
        show("\n".join(f"{start}{summary}{end}" for start, summary, end in _lines(scenarios, _whole).values()))
        return
    width = max(_WIDTH, shutil.get_terminal_size().columns)
    lines = {name: _cut(*line, width) for name, line in _lines(scenarios, _brief).items()}
    matrix = [line for name, line in lines.items() if "join-matrix" in scenarios[name].tags]
    others = [line for name, line in lines.items() if "join-matrix" not in scenarios[name].tags]
    if matrix and others:
        matrix.insert(0, "\n--- the join matrix: what join is there for")
        others.insert(0, "--- bugs, and controls")
    show("\n".join([*others, *matrix]))


def _lines(scenarios: Mapping[str, Listed], text: Callable[[Expectation, int], str]) -> dict[str, tuple[str, str, str]]:
    """What stands before each summary, the summary, and what stands behind it."""
    texts = {name: text(scenario.expected, scenario.world_size) for name, scenario in scenarios.items()}
    name_width, text_width = (max(map(len, column)) for column in (texts, texts.values()))
    found = {}
    for name, scenario in scenarios.items():
        other = text(scenario.expected_under_ddp or scenario.expected, scenario.world_size)
        end = "" if other == texts[name] else f"  [under ddp: {other}]"
        found[name] = (f"{name:<{name_width}}  {texts[name]:<{text_width}}  ", scenario.summary, end)
    return found


def _whole(expected: Expectation, world_size: int) -> str:
    return expected.text(world_size)


def _brief(expected: Expectation, world_size: int) -> str:
    return str(expected.code or expected.verdict.value)


def _cut(start: str, summary: str, end: str, width: int) -> str:
    """A line of at most so many columns, if what stands around the summary leaves it room."""
    room = max(width - len(start) - len(end), 1)
    short = summary if len(summary) <= room else f"{summary[: room - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return f"{start}{short}{end}"


def followed(each: Iterable[Each], total: int) -> Iterable[Each]:
    """The same, as it comes; on a terminal all at the end, and until then a bar shows how far it is."""
    if not sys.stderr.isatty():
        return each
    from rich.console import Console
    from rich.progress import track

    # Without a thread that refreshes it: what runs meanwhile is told from one rank to the next.
    return list(track(each, "running", total=total, console=Console(stderr=True), transient=True, auto_refresh=False))


@contextmanager
def bar(
    name: str, total: float, where: Callable[[Each], tuple[float, str]]
) -> Iterator[Callable[[Each], object] | None]:
    """On a terminal, a bar and what to call with each progress; `where` says how far that is, and a text beside it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True, auto_refresh=False) as bars:  # no thread, as above
        task = bars.add_task(name, total=total)

        def advance(progress: Each) -> None:
            done, text = where(progress)
            bars.update(task, completed=done, description=text, refresh=True)

        yield advance
