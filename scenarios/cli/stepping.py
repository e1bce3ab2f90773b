"""`replay --step`: show a run step by step on a terminal, and ask after each line how far to continue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpsim.simulator.transcript import Line

HELP = "Enter: next step; a number: that many steps; r N: to the next step of rank N; q: quit"


def show_steps(steps: Sequence[Line]) -> None:
    """Show the steps: interactively on a terminal, else all at once."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        print(HELP)
        walk(steps, ask=_ask, show=print)
    else:
        _print_all(steps)


def walk(steps: Sequence[Line], *, ask: Callable[[], str], show: Callable[[str], object]) -> None:
    """Show steps, and ask after each stop how far to continue, until there are no more or the answer is `q`."""
    from ddpsim.simulator.transcript import transcript_lines

    head, *lines = transcript_lines(steps) or [""]
    show(head)
    stop = 0
    for index, line in enumerate(lines):
        show(line)
        if index < stop or index + 1 == len(lines):
            continue
        while (following := stop_after(ask().strip(), steps, index)) is None:
            show(HELP)
        if following == index:
            return
        stop = following


def stop_after(word: str, steps: Sequence[Line], at: int) -> int | None:
    """Return the step to stop at next for an answer given at step `at`: `at` itself to quit, None for a bad answer."""
    if word in ("", "q"):
        return at if word else at + 1
    command, _, rank = word.partition(" ")
    if command == "r" and rank.strip().isdecimal():
        later = (index for index in range(at + 1, len(steps)) if steps[index].rank == int(rank))
        return next(later, len(steps))
    return at + int(word) if word.isdecimal() and int(word) else None


def _ask() -> str:
    try:
        return input()
    except (EOFError, KeyboardInterrupt):
        return "q"


def _print_all(steps: Sequence[Line]) -> None:
    from ddpsim.simulator.transcript import transcript_lines

    try:
        print("\n".join(transcript_lines(steps)), flush=True)
    except BrokenPipeError:  # the reader of the pipe, such as `less`, has quit; discard later output, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
