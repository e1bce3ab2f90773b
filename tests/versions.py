"""The tests under other versions of Python and torch, as a table.

    python -m tests.versions 3.11:2.13.0 3.13:2.15.0    # Python and torch, for each a virtual environment of its own
    python -m tests.versions --list                     # the interpreters that this machine has

For each pair pip installs this checkout with the extra `dev` into a temporary environment, without the versions of
constraints.txt but that of torch, and it runs the default tests, the zoo on both engines, and conformance. Wheels of
torch may be gigabytes; pip's own settings say where it takes them from. Exit status: 0 if all pass, 1 if not, 2 usage
error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))
"""Those that pyproject.toml allows and torch has wheels for."""
STEPS = {
    "default tests": ("-m", "pytest", "-q", "-n", "auto"),
    "zoo": ("-m", "ddpsim", "zoo", "--engine", "both"),
    "conformance": ("-m", "tests.conformance"),
}
PASSED = "passes"


@dataclass(frozen=True, slots=True)
class Pair:
    """Versions of Python and of torch."""

    python: str
    torch: str


Run = Callable[[Sequence[str]], "tuple[int, str]"]
"""Runs a command; returns its exit status and what it printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs that are asked for, and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", type=pair, metavar="PYTHON:TORCH", help="for instance 3.13:2.15.0")
    parser.add_argument("--list", action="store_true", help="name the interpreters that are there")
    options = parser.parse_args(arguments)
    if options.list or not options.pairs:
        print("\n".join(f"{version}  {path}" for version, path in interpreters()) or "none")
        return 0
    rows = [(each, results(each, run)) for each in options.pairs]
    print(table(rows))
    return 0 if all(said == PASSED for _, said_by in rows for said in said_by.values()) else 1


def pair(text: str) -> Pair:
    """The pair that an argument names. Raises ArgumentTypeError otherwise."""
    found = re.fullmatch(r"(3\.\d+):(\d+\.\d+(?:\.\d+)?)", text)
    if not found or found[1] not in PYTHONS:
        raise argparse.ArgumentTypeError(f"{text!r}, expected PYTHON:TORCH with Python {PYTHONS[0]} to {PYTHONS[-1]}")
    return Pair(found[1], found[2])


def interpreters() -> Iterator[tuple[str, str]]:
    """The versions of Python that this machine has, each with its path."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        there = sorted(of_pyenv.glob(f"{version}.*/bin/python{version}"))
        path = str(there[-1]) if there else shutil.which(f"python{version}")
        if path is not None:
            yield version, path


def results(versions: Pair, run: Run) -> dict[str, str]:
    """What came of each step; where the environment cannot be made, of that."""
    path = dict(interpreters()).get(versions.python)
    if path is None:
        return {"environment": "no such Python here"}
    with tempfile.TemporaryDirectory(prefix="ddpsim-versions-") as folder:
        python = f"{folder}/bin/python"
        for command in (
            [path, "-m", "venv", folder],
            [python, "-m", "pip", "install", "-q", f"torch=={versions.torch}", "-e", f"{ROOT}[dev]"],
        ):
            status, printed = run(command)
            if status:
                return {"environment": last_line(printed)}
        said = {}
        for step, words in STEPS.items():
            status, printed = run([python, *words])
            said[step] = PASSED if status == 0 else last_line(printed)
        return said


def run(command: Sequence[str]) -> tuple[int, str]:
    """Run it in the checkout; its output is shown as it comes to an end."""
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    print(f"$ {' '.join(command)}\n{ran.stdout}{ran.stderr}", file=sys.stderr, flush=True)
    return ran.returncode, ran.stdout + ran.stderr


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "failed, and said nothing")


def table(rows: Sequence[tuple[Pair, dict[str, str]]]) -> str:
    """A line for each pair, as Markdown."""
    lines = [f"| Python | torch | {' | '.join(STEPS)} |", "|---" * (2 + len(STEPS)) + "|"]
    for versions, said in rows:
        cells = [said.get(step, said.get("environment", "")) for step in STEPS]
        lines.append(f"| {versions.python} | {versions.torch} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
