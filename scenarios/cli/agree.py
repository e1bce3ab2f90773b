"""`ddpsim agree`: random programs on the simulator and on real gloo, as a table of what came of each kind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.status import Status

if TYPE_CHECKING:
    from ddpsim.scenarios.agreement.breaking import LabelledProgram
    from ddpsim.scenarios.agreement.comparison import Comparison

_PROGRAMS, _SEED, _WORLD_SIZE = 100, 0, "2..4"
_MOST_PROGRAMS = 10**6
_MOST_SEED = 10**12
_MOST_SECONDS = 3600.0

_Note = Callable[["Comparison"], str]
"""What is done with a disagreement, and the lines that say so."""


def agree(
    programs: Annotated[
        int | None, typer.Option(help=f"How many programs to draw.  [default: {_PROGRAMS}]", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help=f"The seed of the first; the others follow.  [default: {_SEED}]", show_default=False),
    ] = None,
    world_size: Annotated[
        str | None,
        typer.Option(
            metavar="N or N..M",
            help=f"How many ranks, or between how many.  [default: {_WORLD_SIZE}]",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="A program in which nothing moves for so long counts as hung.")
    ] = 0.5,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to save programs on which the two disagree.", show_default=False),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run this saved program instead.", show_default=False)
    ] = None,
) -> int:
    """Run random programs on the simulator and on real gloo processes, and say where the two disagree.

    Half of the programs are broken, each in one way. Exit status: 0 they agree, 1 they disagree, 2 usage error, 3 gloo
    could not be asked.
    """
    _check_timeout(timeout)
    if replay is not None:
        _check_alone({"--programs": programs, "--seed": seed, "--world-size": world_size, "--save": save})
        return _replay(replay, timeout)
    seeds = _seeds(_PROGRAMS if programs is None else programs, _SEED if seed is None else seed)
    return _draw(seeds, _WORLD_SIZE if world_size is None else world_size, timeout, save or Path())


def _check_timeout(timeout: float) -> None:
    from ddpsim import UsageError

    if not 0 < timeout <= _MOST_SECONDS:
        raise UsageError(
            f"timeout is {timeout:g}, expected more than 0 and at most {_MOST_SECONDS:g} seconds: "
            "say how long nothing may move"
        )


def _check_alone(others: Mapping[str, object]) -> None:
    from ddpsim import UsageError

    if given := ", ".join(name for name, value in others.items() if value is not None):
        raise UsageError(
            f"found {given} beside --replay, expected no more than --timeout: the file says which program is run"
        )


def _seeds(programs: int, first: int) -> range:
    from ddpsim import UsageError

    if not 1 <= programs <= _MOST_PROGRAMS:
        raise UsageError(f"programs is {programs}, expected 1 to {_MOST_PROGRAMS}: say how many to draw")
    if not 0 <= first <= _MOST_SEED:
        raise UsageError(f"seed is {first}, expected 0 to {_MOST_SEED}: take the seed of a program")
    return range(first, first + programs)


def _replay(path: Path, timeout: float) -> int:
    from ddpsim.scenarios.agreement.saved import load

    labelled = load(path)
    output.show(str(path))
    return _run([labelled], 1, timeout, lambda comparison: "")


def _draw(seeds: range, world_size: str, timeout: float, folder: Path) -> int:
    from ddpsim import UsageError
    from ddpsim.scenarios.agreement.breaking import labelled

    world_sizes = _world_sizes(world_size)
    if not folder.is_dir():
        raise UsageError(f"save is {str(folder)!r}, expected a folder: make it, or name another")
    output.show(_head(seeds, world_size))
    drawn = (labelled(each, world_sizes) for each in seeds)
    return _run(drawn, len(seeds), timeout, lambda comparison: _saved(comparison, folder, world_size))


def _saved(comparison: Comparison, folder: Path, world_size: str) -> str:
    from ddpsim.scenarios.agreement.saved import save

    path = save(comparison, folder, world_size=world_size)
    draw = f"ddpsim agree --programs 1 --seed {comparison.labelled.seed} --world-size {world_size}"
    return f"\n  saved   {path}\n  replay  ddpsim agree --replay {path}\n  draw    {draw}"


def _world_sizes(text: str) -> tuple[int, int]:
    """The smallest and the largest; of "3" both are 3."""
    from ddpsim import UsageError
    from ddpsim.scenarios.agreement.both import MOST_RANKS

    parts = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text, re.ASCII)
    low, high = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
    if not 2 <= low <= high <= MOST_RANKS:
        raise UsageError(
            f"world size is {text!r}, expected a number from 2 to {MOST_RANKS} or a range as 2..4: "
            "say how many ranks programs have"
        )
    return low, high


def _head(seeds: range, world_size: str) -> str:
    which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{_counted(len(seeds), 'program')}, {which}, world size {world_size}"


def _run(programs: Iterable[LabelledProgram], total: int, timeout: float, note: _Note) -> int:
    from ddpsim.scenarios.agreement.both import compared
    from ddpsim.scenarios.agreement.pool import GlooPool, PoolError

    start = time.perf_counter()
    try:
        with GlooPool() as pool:
            running = _told(compared(programs, pool, still_seconds=timeout), note)
            comparisons = list(output.followed(running, total))
    except PoolError as error:
        output.note(str(error))
        return Status.UNKNOWN
    return _summed_up(comparisons, time.perf_counter() - start)


def _told(comparisons: Iterable[Comparison], note: _Note) -> Iterator[Comparison]:
    """The same; each disagreement is told at once, in case the rest is not waited for."""
    from ddpsim.scenarios.agreement.table import disagreements

    for comparison in comparisons:
        if comparison.disagreement:
            output.show(f"\n{disagreements([comparison])}{note(comparison)}")
        yield comparison


def _summed_up(comparisons: Sequence[Comparison], seconds: float) -> int:
    from ddpsim.scenarios.agreement.table import silences, table

    output.show(f"\n{table(comparisons)}")
    if unnoticed := silences(comparisons):
        output.show(f"\nwhat gloo let through, as it does not check it:\n{unnoticed}")
    count, disagreed = len(comparisons), sum(bool(each.disagreement) for each in comparisons)
    output.show(f"\n{_counted(count, 'program')}, {_counted(disagreed, 'disagreement')}, {seconds:.1f} s")
    return Status.OTHERWISE if disagreed else Status.AS_EXPECTED


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
