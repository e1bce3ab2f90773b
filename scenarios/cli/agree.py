"""`ddpsim agree`: random programs on the simulator and on real gloo, as a table of what came of each kind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli import output
from scenarios.cli.status import Status

if TYPE_CHECKING:
    from scenarios.agreement.breaking import LabelledProgram
    from scenarios.agreement.comparison import Comparison

_MOST_RANKS = 64
"""Each is a process that is connected to all others."""


def agree(
    programs: Annotated[int, typer.Option(help="How many programs to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="The seed of the first; the others follow.")] = 0,
    world_size: Annotated[str, typer.Option(metavar="N or N..M", help="How many ranks, or between how many.")] = "2..4",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="A program in which nothing moves for so long counts as hung.")
    ] = 0.5,
    save: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to save programs on which the two disagree.", show_default=False)
    ] = Path(),
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run this saved program instead.", show_default=False)
    ] = None,
) -> int:
    """Run random programs on the simulator and on real gloo processes, and say where the two disagree.

    Half of the programs are broken, each in one way. Exit status: 0 they agree, 1 they disagree, 2 usage error, 3 gloo
    could not be asked.
    """
    _check(programs, seed, timeout, save)
    world_sizes = _world_sizes(world_size)
    from scenarios.agreement.breaking import labelled
    from scenarios.agreement.pool import PoolError
    from scenarios.agreement.saved import load

    seeds = range(seed, seed + (1 if replay else programs))
    drawn = [load(replay)] if replay else (labelled(each, world_sizes) for each in seeds)
    output.show(str(replay) if replay else _head(seeds, world_size))
    try:
        return _run(drawn, len(seeds), timeout, save)
    except PoolError as error:
        output.note(str(error))
        return Status.UNKNOWN


def _check(programs: int, seed: int, timeout: float, save: Path) -> None:
    from simulator import UsageError

    if programs < 1:
        raise UsageError(f"programs is {programs}, expected 1 or more: say how many to draw")
    if seed < 0:
        raise UsageError(f"seed is {seed}, expected 0 or more: take the seed of a program")
    if not 0 < timeout < float("inf"):
        raise UsageError(f"timeout is {timeout:g}, expected more than 0 seconds: say how long nothing may move")
    if not save.is_dir():
        raise UsageError(f"save is {str(save)!r}, expected a folder: make it, or name another")


def _world_sizes(text: str) -> tuple[int, int]:
    """The smallest and the largest; of "3" both are 3."""
    from simulator import UsageError

    parts = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text, re.ASCII)
    low, high = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
    if not 2 <= low <= high <= _MOST_RANKS:
        raise UsageError(
            f"world size is {text!r}, expected a number from 2 to {_MOST_RANKS} or a range as 2..4: "
            "say how many ranks programs have"
        )
    return low, high


def _head(seeds: range, world_size: str) -> str:
    which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{_counted(len(seeds), 'program')}, {which}, world size {world_size}"


def _run(programs: Iterable[LabelledProgram], total: int, timeout: float, folder: Path) -> int:
    from scenarios.agreement.both import compared
    from scenarios.agreement.pool import GlooPool
    from scenarios.agreement.table import silences, table

    start = time.perf_counter()
    with GlooPool() as pool:
        running = _told(compared(programs, pool, still_seconds=timeout), folder)
        comparisons = list(output.followed(running, total))
    seconds = time.perf_counter() - start
    output.show(f"\n{table(comparisons)}")
    if unnoticed := silences(comparisons):
        output.show(f"\nwhat gloo let through, as it does not check it:\n{unnoticed}")
    disagreements = sum(bool(each.disagreement) for each in comparisons)
    output.show(f"\n{_counted(total, 'program')}, {_counted(disagreements, 'disagreement')}, {seconds:.1f} s")
    return Status.OTHERWISE if disagreements else Status.AS_EXPECTED


def _told(comparisons: Iterable[Comparison], folder: Path) -> Iterator[Comparison]:
    """The same; each disagreement is saved and told at once, in case the rest is not waited for."""
    from scenarios.agreement.saved import save
    from scenarios.agreement.table import disagreements

    for comparison in comparisons:
        if comparison.disagreement:
            path = save(comparison, folder)
            output.show(f"\n{disagreements([comparison])}\n  saved   {path}\n  replay  ddpsim agree --replay {path}")
        yield comparison


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
