"""Random programs on the simulator and on real gloo, as a table of what came of each kind.

    python -m tests.agreement --programs 1000 --seed 5000 --world-size 3

Exit status: 0 they agree, 1 they disagree, 2 usage error, 3 gloo could not be asked.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.cli.status import ExitStatus
from tests.agreement.comparison import Comparison, compared
from tests.agreement.gloo import MOST_RANKS, GlooError
from tests.agreement.labelled import LabelledProgram, labelled
from tests.agreement.saved import load, save
from tests.agreement.table import disagreements, silences, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw or load programs, compare, and print; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.replay is not None:
        print(options.replay)
        try:
            programs: Iterable[LabelledProgram] = [load(options.replay)]
        except (OSError, ValueError, LookupError, UsageError) as error:
            parser.error(f"{options.replay}: {error}")
    else:
        seeds = range(options.seed, options.seed + options.programs)
        low, high = _world_sizes(options.world_size)
        print(f"programs of seeds {seeds.start} to {seeds.stop - 1}, world size {options.world_size}")
        programs = (labelled(seed, (low, high)) for seed in seeds)
    start = time.perf_counter()
    try:
        comparisons = list(_told(compared(programs, timeout_seconds=options.timeout), options))
    except (GlooError, UsageError) as error:
        print(error, file=sys.stderr)
        return ExitStatus.UNKNOWN
    return _summed_up(comparisons, time.perf_counter() - start)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.agreement", description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first; the others follow")
    parser.add_argument("--world-size", default="2..4", metavar="N or N..M", help="how many ranks, or between how many")
    parser.add_argument("--timeout", type=float, default=0.5, metavar="SECONDS", help="so long does nothing move")
    parser.add_argument("--save", type=Path, default=Path(), metavar="DIR", help="where to save disagreements")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this saved program instead")
    return parser


def _world_sizes(text: str) -> tuple[int, int]:
    """The smallest and the largest; of "3" both are 3."""
    parts = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text, re.ASCII)
    low, high = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
    if not 2 <= low <= high <= MOST_RANKS:
        raise SystemExit(f"world size is {text!r}, expected a number from 2 to {MOST_RANKS} or a range as 2..4")
    return low, high


def _told(comparisons: Iterable[Comparison], options: argparse.Namespace) -> Iterator[Comparison]:
    """The same; each disagreement is told, and saved where it was drawn, in case the rest is not waited for."""
    for comparison in comparisons:
        if comparison.disagreement:
            print(f"\n{disagreements([comparison])}")
            if options.replay is None:
                path = save(comparison, options.save, world_size=options.world_size)
                print(f"  saved   {path}\n  replay  python -m tests.agreement --replay {path}", flush=True)
        yield comparison


def _summed_up(comparisons: Sequence[Comparison], seconds: float) -> int:
    print(f"\n{table(comparisons)}")
    if unnoticed := silences(comparisons):
        print(f"\nwhat gloo let through, as it does not check it:\n{unnoticed}")
    disagreed = sum(bool(each.disagreement) for each in comparisons)
    print(f"\n{len(comparisons)} programs, {disagreed or 'no'} disagreements, {seconds:.1f} s")
    return ExitStatus.OTHERWISE if disagreed else ExitStatus.AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
