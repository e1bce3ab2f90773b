"""The corpus: a folder of scenario files, each a failure that a campaign found. They are tried first the next time."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.recorded_outcome import with_outcome
from ddpsim.scenarios.fuzzing.campaign_report import Execution, Failure
from ddpsim.scenarios.fuzzing.judging import COMPARED, judged
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import silent
from ddpsim.simulator.whole_file import write_whole


class State(Enum):
    """What became of a file."""

    FAILS = "still fails"
    PASSES = "passes now"
    LEFT_OUT = "not tried"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class Tried:
    """A file of the corpus that was tried."""

    path: Path
    state: State
    text: str
    """What it comes to; why it could not be tried."""
    executions: tuple[Execution, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}  {self.state.value}{f': {self.text}' if self.text else ''}"


def check_folder(folder: Path) -> None:
    """Raise UsageError if it cannot be a corpus."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"corpus is {str(folder)!r}, which is no folder, expected one or a new name: name another")
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):  # better now than after an hour
        raise UsageError(f"corpus is {str(folder)!r}, which cannot be made, expected a folder that can: name another")


def try_all(folder: Path, engines: Sequence[Engine]) -> Iterator[Tried]:
    """Try each file, in the order of their names; those of other engines are left out. No file ends the others."""
    for path in sorted(folder.glob("*.toml")):
        yield _tried(path, engines)


def _tried(path: Path, engines: Sequence[Engine]) -> Tried:
    try:
        scenario = load(str(path))
    except UsageError as error:
        return Tried(path, State.UNREADABLE, _advised(str(error)))
    both = COMPARED in scenario.tags
    wanted = tuple(Engine) if both else (scenario.engine,)
    if not set(wanted) <= set(engines):
        names = " and ".join(engine.value for engine in wanted)
        return Tried(path, State.LEFT_OUT, f"it runs on {names}")
    executions = tuple(judged(scenario, wanted))
    failures = [each.failure for each in executions if each.failure is not None]
    if failures:
        return Tried(path, State.FAILS, f"found {failures[0].found}, expected {failures[0].expected}", executions)
    return Tried(path, State.PASSES, "kept, in case it comes back", executions)


def _advised(problem: str) -> str:
    """The problem in one line, with what can be done about a file that nobody wrote by hand."""
    return f"{' '.join(problem.split())}; the others are tried: mend or delete this one"


def keep(folder: Path, failure: Failure) -> Path:
    """Save a failure under its code and a hash of the text, which is the same for the same failure.

    Raises UsageError if it cannot be written, as `record` does.
    """
    path = path_of(folder, failure)
    _write(path, failure.text)
    return path


def path_of(folder: Path, failure: Failure) -> Path:
    """Where it is kept."""
    return folder / f"{failure.group.code}-{hashlib.sha256(failure.text.encode()).hexdigest()[:8]}.toml"


def run_command(path: Path) -> str:
    """The command that runs a file."""
    return f"ddpsim run {shlex.quote(str(path))}"


def record(path: Path) -> str:
    """Run a file, write down in it what came of that, and return the command that replays it."""
    try:
        scenario = load(str(path))
        with silent(scenario):
            result = run_scenario(scenario)
    except Exception:  # of ours: that is what the file is kept for
        return run_command(path)
    _write(path, with_outcome(path.read_text(encoding="utf-8"), result))
    return result.replay


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}): name a folder that can be, by --corpus"
        ) from None
