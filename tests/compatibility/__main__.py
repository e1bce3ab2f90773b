"""Ordinary programs under torchrun, on real gloo, and under `ddpsim run`: do both print the same, and how soon?

    python -m tests.compatibility              # all of examples/programs, as a table
    python -m tests.compatibility train ring   # those whose command has one of the words
    python -m tests.compatibility --write      # all, and the table of docs/programs.md is made anew

Exit status: 0 all are the same, 1 some are not. A program of a framework that is not installed is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compatibility.cases import CASES, Case
from tests.compatibility.running import on_gloo, simulated
from tests.compatibility.table import Row, in_page, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "programs.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only what has one of these in its command")
    parser.add_argument("--write", action="store_true", help="write the table into docs/programs.md")
    parser.add_argument("--jobs", type=int, default=1, help="so many programs at a time, which all take longer then")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}, expected 1 or more")
    if options.write and options.words:
        parser.error("the table has all programs: leave out --write, or the words")
    chosen = [case for case in CASES if not options.words or any(word in case.command for word in options.words)]
    if not chosen:
        parser.error(f"no command has {' or '.join(options.words)}: see examples/programs")
    left_out = {case.command: case.lacks for case in chosen if case.lacks}
    if left_out and options.write:
        parser.error(f"the table has all programs, and {sorted(left_out)[0]} cannot run: {min(left_out.values())}")
    for command, reason in left_out.items():
        print(f"{command:32}left out: {reason}")
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(_run, (case for case in chosen if case.command not in left_out)))
    print(f"\n{table(rows)}")
    if options.write:
        PAGE.write_text(in_page(PAGE.read_text(), rows))
    return 0 if all(row.passes for row in rows) else 1


def _run(case: Case) -> Row:
    """Both ways, and told when it has ended."""
    row = Row(case, on_gloo(case), simulated(case))
    print(f"{case.command:32}{row.problem or 'the same'}", flush=True)
    return row


if __name__ == "__main__":
    raise SystemExit(main())
