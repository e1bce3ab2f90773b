"""The corpus: a folder of scenario files, one per failure that a campaign found. The next campaign runs them first."""

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
from ddpsim.scenarios.files.recorded_outcome import append_outcome
from ddpsim.scenarios.files.saving import write_text
from ddpsim.scenarios.fuzzing.campaign_report import FuzzExecution, FuzzFailure
from ddpsim.scenarios.fuzzing.judging import COMPARED, run_and_judge
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output

_ADVICE = "give a writable folder by --corpus"


class CorpusFileState(Enum):
    """The result of running a corpus file."""

    FAILS = "still fails"
    PASSES = "passes now"
    LEFT_OUT = "not tried"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class CorpusFileResult:
    """The result of running one file of the corpus."""

    path: Path
    state: CorpusFileState
    text: str
    """The result of the run in words, or the reason why the file was not run."""
    executions: tuple[FuzzExecution, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}  {self.state.value}{f': {self.text}' if self.text else ''}"


def check_corpus_folder(folder: Path) -> None:
    """Raise UsageError if the folder cannot hold a corpus."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"corpus {str(folder)!r} is not a folder: give a folder or a new name")
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):  # checked now instead of after an hour of fuzzing
        raise UsageError(f"corpus {str(folder)!r} cannot be created: give another folder")


def run_corpus_files(folder: Path, engines: Sequence[Engine]) -> Iterator[CorpusFileResult]:
    """Run each file of the corpus, in the order of names. Files for other engines are left out.

    A file that cannot be read is reported as such, not raised as an error.
    """
    for path in sorted(folder.glob("*.toml")):
        yield _run_corpus_file(path, engines)


def _run_corpus_file(path: Path, engines: Sequence[Engine]) -> CorpusFileResult:
    try:
        scenario = load(str(path))
    except UsageError as error:
        problem = " ".join(str(error).split())
        advice = "the other files are run: correct or delete this one"
        return CorpusFileResult(path, CorpusFileState.UNREADABLE, f"{problem}; {advice}")
    both = COMPARED in scenario.tags
    wanted = tuple(Engine) if both else (scenario.engine,)
    if not set(wanted) <= set(engines):
        names = " and ".join(engine.value for engine in wanted)
        return CorpusFileResult(path, CorpusFileState.LEFT_OUT, f"it runs on {names}")
    executions = tuple(run_and_judge(scenario, wanted))
    if failure := next((each.failure for each in executions if each.failure is not None), None):
        text = f"found {failure.found}, expected {failure.expected}"
        return CorpusFileResult(path, CorpusFileState.FAILS, text, executions)
    return CorpusFileResult(path, CorpusFileState.PASSES, "kept, in case it comes back", executions)


def save_failure(folder: Path, failure: FuzzFailure) -> Path:
    """Save a failure in a file of the corpus.

    The file's name is made from the failure's code and a hash of the text, so equal failures share a file. Raises
    UsageError if the file cannot be written.
    """
    path = path_of_failure(folder, failure)
    write_text(path, failure.text, advice=_ADVICE)
    return path


def path_of_failure(folder: Path, failure: FuzzFailure) -> Path:
    """Return the path of the corpus file in which a failure is saved."""
    return folder / f"{failure.group.code}-{hashlib.sha256(failure.text.encode()).hexdigest()[:8]}.toml"


def command_for_file(path: Path) -> str:
    """Return the command line that runs the scenario in a corpus file."""
    return f"ddpsim run {shlex.quote(str(path))}"


def record_outcome(path: Path) -> str:
    """Run the scenario in a file, write the outcome into the file, and return the command that replays the run."""
    try:
        scenario = load(str(path))
        with hide_program_output(scenario):
            result = run_scenario(scenario)
    except Exception:  # an error in ddpsim is what the file was saved for
        return command_for_file(path)
    write_text(path, append_outcome(path.read_text(encoding="utf-8"), result), advice=_ADVICE)
    return result.replay
