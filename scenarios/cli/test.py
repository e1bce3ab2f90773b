"""`ddpsim test`: run a test suite that was not written for ddpsim, by pytest."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ddpsim.simulator.errors import UsageError


def run_suite(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Arguments of pytest: files, folders, tests, options; or -m unittest and those of unittest.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run each test on N ranks, for suites that run as torchrun -m pytest."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", help="The number of virtual GPUs; ranks are processes then.  [default: none]"),
    ] = None,
) -> NoReturn:
    """Run a test suite with simulated ranks; the exit status is pytest's.

    Without --ranks, the ranks are those that tests start themselves, by torch's test classes for instance.
    """
    words = list(arguments or ())
    if words[:2] == ["-m", "unittest"]:
        words = pytest_arguments_of_unittest(words[2:])
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks is {ranks}, expected a whole number from 1: correct it")
    if gpus is not None and gpus < 1:
        raise UsageError(f"--gpus is {gpus}, expected a whole number from 1: correct it")
    options = ["--ddpsim"] if ranks is None else ["--ddpsim-ranks", str(ranks)]
    options += [] if gpus is None else ["--ddpsim-gpus", str(gpus)]
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        options += ["-p", "ddpsim.scenarios.pytest_plugin"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *options, *words])  # a new Python has imported nothing


def pytest_arguments_of_unittest(words: Sequence[str]) -> list[str]:
    """Return the arguments of pytest that run what `python -m unittest` with these arguments runs."""
    parser = ArgumentParser("ddpsim test -m unittest", add_help=False)
    for flag in ("-v", "-q", "-f", "-b", "-c"):
        parser.add_argument(flag, f"--{_LONG[flag]}", action="store_true", dest=flag[1])
    parser.add_argument("-k", action="append", default=[])
    parser.add_argument("-s", "--start-directory", dest="start")
    parser.add_argument("-p", "--pattern")
    parser.add_argument("-t", "--top-level-directory", dest="top")
    parser.add_argument("names", nargs="*")
    is_discovery = words[:1] == ["discover"]
    given = parser.parse_args(words[is_discovery:])
    options = [f"-{name}" for name in "vq" if getattr(given, name)] + ["-x"] * given.f
    options += ["-k", " or ".join(given.k)] if given.k else []
    kinds = ["-o", "python_functions=", "-o", "python_classes="]  # unittest knows only its own classes
    if given.names and not is_discovery:
        return [*options, *kinds, *map(_node_of_name, given.names)]
    start, pattern = [*given.names, "", ""][:2]
    pattern = given.pattern or pattern or "test*.py"
    return [*options, *kinds, "-o", f"python_files={pattern}", given.start or start or "."]


_LONG = {"-v": "verbose", "-q": "quiet", "-f": "failfast", "-b": "buffer", "-c": "catch"}


def _node_of_name(name: str) -> str:
    """Return the file, class and method of a name such as package.module.Class.method, as pytest writes them."""
    if name.endswith(".py"):
        return name
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = Path(*parts[:count])
        for found in (path.with_suffix(".py"), path):
            if found.is_file() or (found.is_dir() and count == len(parts)):
                return "::".join([str(found), *parts[count:]])
    raise UsageError(f"there is no file for {name!r}, expected a module, class or method below this folder: correct it")
