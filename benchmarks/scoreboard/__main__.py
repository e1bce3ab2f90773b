"""How much each tool finds of what is wrong with programs that were drawn, and what it says of those that are right.

    python -m benchmarks.scoreboard [--seed 0] [--draws 3] [--tools NAME ...] [--only TEMPLATE] [--write FILE]

Programs are drawn from some sixty templates, after the classes of the MPI corpora; each wrong one has a repaired twin.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.scoreboard import table
from benchmarks.scoreboard.case import Case
from benchmarks.scoreboard.judging import Judged
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.real import Gloo, Threaded
from benchmarks.scoreboard.simulated import Explored, OneRun, TorchReader
from benchmarks.scoreboard.templates import ALL
from benchmarks.scoreboard.tool import Tool

TOOLS: tuple[Tool, ...] = (
    OneRun(),
    Explored(),
    Gloo(),
    Gloo("gloo, DEBUG=DETAIL", TORCH_DISTRIBUTED_DEBUG="DETAIL"),
    TorchReader(),
    Threaded(),
)


def main() -> None:
    """Draw, judge, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3, help="of each template")
    parser.add_argument("--tools", nargs="*", default=[tool.name for tool in TOOLS], choices=[t.name for t in TOOLS])
    parser.add_argument("--only", default="", help="one template, with programs and texts")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its marks")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch, about what the programs do
    templates = [each for each in ALL if not options.only or each.name == options.only]
    if not templates:
        parser.error(f"--only is {options.only!r}, expected a template: {', '.join(each.name for each in ALL)}")
    cases = [case for each in templates for number in range(options.draws) for case in each.cases(options.seed, number)]
    results = {tool.name: judged(tool, cases) for tool in TOOLS if tool.name in options.tools}
    if options.only:
        show(results)
    wrong = sum(case.kind is not Kind.CORRECT for case in cases)
    text = "\n\n".join(
        [
            f"{len(cases)} programs, {wrong} of them wrong; seed {options.seed}.",
            table.totals(results),
            "Of each class: right class and line / found.",
            table.by_kind(results),
            table.misses(results),
        ]
    )
    print(text)
    if options.write:
        write(options.write, text)


def judged(tool: Tool, cases: Sequence[Case]) -> list[Judged]:
    """What a tool says of all cases."""
    found = []
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as folder, ThreadPoolExecutor(tool.at_once) as pool:
        files = [Path(folder) / f"{case.name}.py" for case in cases]
        for case, file in zip(cases, files, strict=True):
            file.write_text(case.source)
        one_by_one = map if tool.at_once == 1 else pool.map
        for case, said in zip(cases, one_by_one(tool.judge, cases, files), strict=True):
            found.append(Judged(case, said))
            print(f"\r{tool.name}: {len(found)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def show(results: table.Results) -> None:
    """Print programs, and what was said of them."""
    for name, all_judged in results.items():
        for each in all_judged:
            print(f"=== {each.case.name} on {each.case.size} ranks, by {name}: {each.said.seconds:.2f} s")
            print(f"{each.case.source}\n{each.said.text or 'no alarm'}\n")


BEGIN, END = "<!-- scoreboard -->", "<!-- end of scoreboard -->"


def write(page: Path, text: str) -> None:
    """Put the tables between the marks of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page}: found no {BEGIN} and {END}, expected both: put them where the tables are to stand")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
