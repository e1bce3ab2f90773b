"""Run a line of a page as a shell would: `ddpsim`, `pytest` and `python FILE` in this process, anything else in bash.

In this process, because each new one would load torch, which takes seconds; there are some hundred lines.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from ddpsim.scenarios.cli import main

SHELL_SYNTAX = re.compile(r"[|&;<>$*]")


def run(line: str) -> tuple[int, str]:
    """Exit status and output, of both streams."""
    name, *arguments = words = shlex.split(line.replace("\\\n", " "), comments=True)
    here = {"ddpsim": main, "pytest": _pytest}.get(name)
    if name == "python" and arguments and arguments[0].endswith(".py"):
        here = _python
    if "--ddpsim" in words or words[:2] == ["ddpsim", "test"]:
        here = None  # torch's test classes change their process, and ranks are forked from it
    if here is None or SHELL_SYNTAX.search(" ".join(words)):
        return _shell(line)
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output), _modules_forgotten():
        status = _status(here, arguments)
    return status, output.getvalue()


def _status(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return int(command(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _pytest(arguments: Sequence[str]) -> int:
    with warnings.catch_warnings():
        warnings.resetwarnings()  # ours are errors, those of a reader are not
        return pytest.main([*arguments, "-p", "no:cacheprovider", "-p", "no:randomly"])


def _python(arguments: Sequence[str]) -> int:
    kept, sys.argv = sys.argv, list(arguments)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv = kept
    return 0


def _shell(line: str) -> tuple[int, str]:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
    )
    return done.returncode, done.stdout


@contextmanager
def _modules_forgotten() -> Iterator[None]:
    """Forget what is imported from the current folder, so that a page may write a file again."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        forget_modules(Path.cwd())


def forget_modules(folder: Path) -> None:
    """Forget the modules whose files are in the folder."""
    start = f"{folder}{os.sep}"
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(start):
            del sys.modules[name]
