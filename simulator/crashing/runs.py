"""Runs a program again and again, each time in a copy of the working folder."""

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ddpsim.simulator.api import make_plan
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.crashing.values import Attempts, Diaries, Entry
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.faults import Strike
from ddpsim.simulator.hosts import FRESH_STORE
from ddpsim.simulator.one_run import run_once
from ddpsim.simulator.policies.named import RoundRobin
from ddpsim.simulator.result import Result
from ddpsim.simulator.run_options import REFERENCE

LARGEST_FOLDER = 1 << 29
_NOT_COPIED = (".git", "__pycache__")
_RUN_SECONDS = 60.0


class CrashRuns:
    """Runs the program again and again, each time in a copy of the working folder at the same path."""

    def __init__(self, program: Any, world_size: int, options: Mapping[str, Any], seconds: float) -> None:
        """`seconds`: the wall time that a run may take, if it is more than a minute."""
        for name in ("faults", "max_restarts"):
            if options.get(name):
                raise UsageError(f"{name} is {options[name]!r}, but a sweep of crashes sets its own: leave it out")
        if options.get("check") == REFERENCE:
            raise UsageError(f"check is {REFERENCE!r}, but a sweep of crashes judges otherwise: leave it out")
        self._program, self._world_size = program, world_size
        self._options = {**options, "max_restarts": 1, "one_at_a_time": True}
        self._home, self._made = os.getcwd(), ExitStack()
        self.seconds = seconds
        size = 0
        for folder, inner, files in os.walk(self._home):
            inner[:] = set(inner) - set(_NOT_COPIED)
            size += sum(os.lstat(os.path.join(folder, each)).st_size for each in files)
        if size > LARGEST_FOLDER:
            raise UsageError(
                f"the working folder has {size >> 20} MiB, of which each run gets a copy, expected "
                f"{LARGEST_FOLDER >> 20} at most: run it in a folder that has only what the program needs"
            )
        self._resumed: dict[str, tuple[Result, Diaries]] = {}
        """By the digest of the files that a first attempt left: the result of resuming from them, and the diaries."""

    def __enter__(self) -> "CrashRuns":
        self._root = self._made.enter_context(tempfile.TemporaryDirectory(prefix="ddpsim-crash-"))
        self.folder = str(Path(os.path.realpath(self._root), "work"))
        # With a store that lasts, gloo may meet the addresses of the first attempt.
        self._made.enter_context(patch.dict(os.environ, {FRESH_STORE: "1"}))
        return self

    def __exit__(self, *error: object) -> None:
        self._made.close()

    def run(self, strikes: Sequence[Strike], *, may_skip: bool = False) -> Attempts:
        """Run the program, with its output hidden, and read the diaries of its ranks. `may_skip`: it does not resume
        from files from which it has resumed before."""
        diary = Path(self._root, "diary")
        for folder in (self.folder, diary):
            shutil.rmtree(folder, ignore_errors=True)
        diary.mkdir()
        try:
            shutil.copytree(self._home, self.folder, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        except OSError as error:  # shutil.Error has a list of (from, to, why)
            why = "{0}: {2}".format(*error.args[0][0]) if isinstance(error, shutil.Error) else error
            raise UsageError(
                f"the working folder cannot be copied, {why}: run it in a folder that has only what the program needs"
            ) from None
        hidden, left = io.StringIO(), ""

        def goes_on() -> bool:
            nonlocal left
            left = _digest_of_files(self.folder)
            return not may_skip or left not in self._resumed

        with redirect_stdout(hidden), redirect_stderr(hidden), ExitStack() as stack:
            stack.callback(os.chdir, self._home)
            os.chdir(self.folder)
            options = {**self._options, "faults": tuple(strikes)}
            runnable, plan = make_plan(self._program, self._world_size, options, None)
            plan, budget = replace(plan, diary=str(diary)), Budget(seconds=max(self.seconds, _RUN_SECONDS))
            result = run_once(runnable, self._world_size, plan, policy=RoundRobin(), budget=budget, goes_on=goes_on)
        first, second = [
            [_read_diary(diary / f"{attempt}.{rank}") for rank in range(self._world_size)] for attempt in (0, 1)
        ]
        if left and not result.attempts:
            return Attempts(self._resumed[left][0], first, self._resumed[left][1], is_copied=True)
        if left:
            self._resumed[left] = result, second
        return Attempts(result, first, second)


def _digest_of_files(folder: str) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(folder).rglob("*")):
        if "__pycache__" not in path.parts:
            hashed.update(f"{path}\0".encode())
            hashed.update(path.read_bytes() if path.is_file() else b"")
    return hashed.hexdigest()


def _read_diary(path: Path) -> list[Entry]:
    return [Entry(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
