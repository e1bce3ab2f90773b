"""Printing for the commands: plain text, coloured on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar

from ddpsim.simulator.budget import Budget

if TYPE_CHECKING:
    from rich.text import Text

    from ddpsim.scenarios.files.catalogue import Listed
    from ddpsim.scenarios.model import Expectation

Each = TypeVar("Each")

_WIDTH = 120
"""The width to which lines of a list are shortened. On a wider terminal the terminal's own width is used."""


BEGAN: ContextVar[float | None] = ContextVar("BEGAN", default=None)
"""When the process of this command started; None if it is not that of one command, or once its time was printed."""


def time_since_start(run_began: float) -> str:
    """Return for how long the user has waited, and how much of it was loading; after the first run, its own time."""
    began, now = BEGAN.get(), time.perf_counter()
    BEGAN.set(None)
    if began is None:
        return f"{(now - run_began) * 1000:.0f} ms"
    return f"{(now - began) * 1000:.0f} ms, {(run_began - began) * 1000:.0f} ms of it to load"


def print_text(text: str) -> None:
    """Print a text immediately, with colours and wrapped sentences if the output is a terminal."""
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        text = text.replace("\N{MIDDLE DOT}", "-")
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    text = indent_wrapped_lines(text, shutil.get_terminal_size().columns)
    # Imported here: output to a pipe needs no colours.
    from rich.text import Text

    from ddpsim.reports.forms.text import STYLES

    styled = Text(text)
    for pattern, style in STYLES:
        styled.highlight_regex(pattern, style)
    print_styled(styled)


_SENTENCE = re.compile(r"  (?:cause|try|note|counts)   *(?=\S)")


def indent_wrapped_lines(text: str, columns: int) -> str:
    """Wrap the sentences of a report with an indent. Commands to copy and columns of calls stay on their lines."""
    fill = partial(textwrap.fill, width=columns, break_long_words=False, break_on_hyphens=False)
    labels = [(line, _SENTENCE.match(line)) for line in text.split("\n")]
    return "\n".join(fill(line, subsequent_indent=" " * label.end()) if label else line for line, label in labels)


def print_styled(text: Text) -> None:
    """Print a text with styles immediately; colours show if the output is a terminal, unless NO_COLOR is set."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(text, soft_wrap=True)
    else:
        print(text.plain, flush=True)


def print_note(text: str, stream: TextIO | None = None) -> None:
    """Print a line to stderr, so that the line does not mix with the command's output on stdout."""
    print(f"ddpsim: {text}", file=stream or sys.stderr)


def print_scenario_list(scenarios: Mapping[str, Listed]) -> None:
    """Print a line for each scenario: its name, expected outcome and summary. Lines are shortened on a terminal."""
    if not sys.stdout.isatty():
        whole = _scenario_lines(scenarios, lambda expected, world_size: expected.text(world_size))
        print_text("\n".join(map("".join, whole.values())))
        return
    width = max(_WIDTH, shutil.get_terminal_size().columns)
    brief = _scenario_lines(scenarios, lambda expected, _: str(expected.code or expected.verdict.value))
    lines = {name: _join_and_shorten(*line, width) for name, line in brief.items()}
    matrix = [line for name, line in lines.items() if "join-matrix" in scenarios[name].tags]
    others = [line for name, line in lines.items() if "join-matrix" not in scenarios[name].tags]
    if matrix and others:
        matrix.insert(0, "\n--- the join matrix: cases of `join()` with uneven inputs")
        others.insert(0, "--- bugs, and controls")
    print_text("\n".join([*others, *matrix]))


def _scenario_lines(
    scenarios: Mapping[str, Listed], text: Callable[[Expectation, int], str]
) -> dict[str, tuple[str, str, str]]:
    """Return each scenario's line in three parts: the columns before its summary, the summary, the text after it."""
    texts = {name: text(scenario.expected, scenario.world_size) for name, scenario in scenarios.items()}
    name_width, text_width = (max(map(len, column)) for column in (texts, texts.values()))
    found = {}
    for name, scenario in scenarios.items():
        other = text(scenario.expected_under_ddp or scenario.expected, scenario.world_size)
        end = "" if other == texts[name] else f"  [under ddp: {other}]"
        found[name] = (f"{name:<{name_width}}  {texts[name]:<{text_width}}  ", scenario.summary, end)
    return found


def _join_and_shorten(start: str, summary: str, end: str, width: int) -> str:
    """Join the parts of a line. The summary is shortened so that the line fits into `width` columns."""
    room = max(width - len(start) - len(end), 1)
    short = summary if len(summary) <= room else f"{summary[: room - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return f"{start}{short}{end}"


def with_progress_bar(each: Iterable[Each], total: int) -> Iterable[Each]:
    """Yield the items as they arrive. On a terminal, show a progress bar instead, then yield all items at the end."""
    kept: list[Each] = []
    try:
        with progress_bar("running", total, lambda count: (count, "running")) as advance:
            if advance is None:
                yield from each
            else:
                for item in each:
                    kept.append(item)
                    advance(len(kept))
    finally:
        yield from kept


@contextmanager
def progress_bar(
    name: str, total: float, where: Callable[[Each], tuple[float, str]]
) -> Iterator[Callable[[Each], object] | None]:
    """Show a progress bar on a terminal, and yield the function that updates the bar.

    `where` takes a progress object and returns the amount done and a text to show next to the bar.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(file=sys.stderr), transient=True, auto_refresh=False
    ) as bars:  # without a thread: one runs at a time
        task = bars.add_task(name, total=total)

        def advance(progress: Each) -> None:
            done, text = where(progress)
            bars.update(task, completed=done, description=text, refresh=True)

        yield advance


_FIRST_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ShownBudget(Budget):
    """Limits of a run that, on a terminal, says now and then what goes on: after 3 s, 6 s, 12 s and so on."""

    _shown: list[float] = field(default_factory=lambda: [_FIRST_SECONDS / 2], repr=False)
    """The seconds after which each line was printed."""
    _stream: TextIO = field(default_factory=lambda: sys.stderr, repr=False)
    """Standard error, also while the output of a repetition is hidden."""
    _purpose: str = ""

    def for_repetition(self, seconds: float) -> Budget:
        """Return the limits of a repetition, whose lines say what it is for."""
        again = "run again to find where the ranks part, "
        return replace(self, seconds=min(seconds, self.seconds), _shown=[_FIRST_SECONDS / 2], _purpose=again)

    def note_progress(self, seconds: float, steps: int, calls: int, who: object, processes: Sequence[int]) -> None:
        """Print a line about the run, if it is time."""
        if seconds < 2 * self._shown[-1] or not self._stream.isatty():
            return
        self._shown.append(seconds)
        mebibytes = sum(map(_own_kibibytes, processes)) >> 10
        where = f"{steps} steps, {calls} calls, {who or 'no rank'} runs, {mebibytes} MiB of memory"
        print_note(f"{self._purpose}{seconds:.0f} s: {where}", self._stream)


def _own_kibibytes(process: int) -> int:
    """Return the memory of a process, of which shared pages count in part; 0 if the system does not tell."""
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0
