"""The corpus: a folder of scenario files, one per failure that a campaign found. The next campaign runs them first."""

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ddpsim import Budget, Code, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.recorded_outcome import append_outcome
from ddpsim.scenarios.files.saving import scenario_as_toml, write_text
from ddpsim.scenarios.fuzzing.campaign_report import FuzzExecution, FuzzFailure
from ddpsim.scenarios.fuzzing.judging import COMPARED, run_and_judge
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario, shrink_scenario, size_text
from ddpsim.scenarios.model import outcome_text
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.simulator.ctrl_c import CtrlCGuard
from ddpsim.simulator.shrinking.greedy import ShrinkEnd

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
    """Run each file of the corpus, in the order of names. Files for other engines are left out."""
    for path in sorted(folder.glob("*.toml")):
        yield _run_corpus_file(path, engines)


def _run_corpus_file(path: Path, engines: Sequence[Engine]) -> CorpusFileResult:
    try:
        scenario = load(str(path))
    except UsageError as error:
        problem = " ".join(str(error).split())
        advice = "the other files are run: correct or delete this one"
        return CorpusFileResult(path, CorpusFileState.UNREADABLE, f"{problem}; {advice}")
    wanted = tuple(Engine) if COMPARED in scenario.tags else (scenario.engine,)
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


def run_command_for_file(path: Path) -> str:
    """Return the command line that runs the scenario in a corpus file."""
    return f"ddpsim run {shlex.quote(str(path))}"


def record_outcome_in_file(path: Path) -> str:
    """Run the scenario in a file, write the outcome into the file, and return the command that replays the run."""
    try:
        scenario = load(str(path))
        with hide_program_output(scenario):
            result = run_scenario(scenario)
    except Exception:  # an error in ddpsim is what the file was saved for
        return run_command_for_file(path)
    write_text(path, append_outcome(path.read_text(encoding="utf-8"), result), advice=_ADVICE)
    return result.replay


SHRINKING = Budget(executions=5000, seconds=20.0)
"""The budget for shrinking one failure in a campaign; `ddpsim shrink` can shrink a saved file further."""


@dataclass(frozen=True, slots=True)
class SavedFailure:
    """A failure that was saved in the corpus."""

    failure: FuzzFailure
    """The failure as it was found."""
    count: int
    """The number of failures in this failure's group of equal failures."""
    path: Path
    how: str
    """The result of shrinking, in words."""
    replay: str
    is_known: bool = False
    """True if the corpus contained the failure before the campaign."""
    is_interrupted: bool = False
    """True if Ctrl-C ended shrinking."""

    def __str__(self) -> str:
        group = self.failure.group
        times = "once" if self.count == 1 else f"{self.count} times"
        outcome = f"found {self.failure.found}, expected {self.failure.expected}"
        lines = [
            f"{group.code}  {group.kind} on {group.engine.value}, {times}: {outcome}",
            f"  {'known' if self.is_known else 'saved'}   {self.path}  {self.how}",
            f"  run     {run_command_for_file(self.path)}",
            f"  replay  {self.replay}",
        ]
        return "\n".join(lines)


class FailureSaver:
    """Saves failures as they are found, and shrinks them after the batches."""

    def __init__(self, folder: Path, plan: CampaignPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._before = {path.name for path in folder.glob("*.toml")}
        self._provisional: list[Path] = []

    def save_unshrunk(self, failure: FuzzFailure) -> Path:
        """Save a failure immediately, without shrinking, in case the campaign is killed."""
        path = save_failure(self._folder, failure)
        self._provisional.append(path)
        return path

    def shrink_and_save(self, failure: FuzzFailure, count: int, *, shrinks: bool) -> SavedFailure:
        """Shrink a failure and save the result. After Ctrl-C or on a full disk, return the best result so far."""
        path = path_of_failure(self._folder, failure)
        kept = SavedFailure(failure, count, path, "not shrunk", run_command_for_file(path))
        with CtrlCGuard() as ctrl_c:
            try:
                self.save_unshrunk(failure)
                # A hang takes long to detect, and may leave a thread that spins: one is enough.
                if shrinks and failure.group.code != Code.STUCK:
                    kept = self._shrink_failure(kept)
                kept = replace(kept, replay=record_outcome_in_file(kept.path))
            except UsageError as error:  # the disk may be full: the summary is more important than the file
                kept = replace(kept, how=f"{kept.how}; {error}")
        is_known = kept.path.name in self._before
        return replace(kept, is_known=is_known, is_interrupted=kept.is_interrupted or ctrl_c.is_pressed)

    def delete_unshrunk_files(self, kept: list[SavedFailure]) -> None:
        """Delete the unshrunk file of each failure that has been saved in shrunk form since."""
        final = {each.path for each in kept}
        for path in self._provisional:
            if path not in final and path.name not in self._before:
                path.unlink(missing_ok=True)

    def _shrink_failure(self, kept: SavedFailure) -> SavedFailure:
        """Return the failure shrunk, or unchanged if it cannot be shrunk."""
        try:
            shrunk = shrink_scenario(str(kept.path), kept.failure.group.engine, budget=SHRINKING)
        except Exception:  # one run cannot show the failure, as when engines differ or ddpsim raises
            return kept
        if shrunk.end is ShrinkEnd.FLAKY:
            how = "not shrunk: it did not fail again under its schedule, so it depends on time or chance"
            return replace(kept, how=how)
        path = save_failure(self._folder, replace(kept.failure, text=self._shrunk_file_text(shrunk)))
        before, after = (size_text(shrunk.scenario, size) for size in (shrunk.size_before, shrunk.size))
        how = f"shrunk from {before} to {after}{'' if shrunk.is_minimal else ', maybe not minimal'}"
        is_interrupted = shrunk.end is ShrinkEnd.INTERRUPT
        return replace(kept, path=path, how=how, replay=run_command_for_file(path), is_interrupted=is_interrupted)

    def _shrunk_file_text(self, shrunk: ShrunkScenario) -> str:
        """Return the file text of the shrunk scenario. A scenario fuzzed by name is referred to by this name."""
        scenario, found = shrunk.scenario, shrunk.result.findings[0]
        expected = scenario.expected_by(scenario.engine).text(scenario.world_size)
        summary = f"found {outcome_text(shrunk.result)}, expected {expected}: {found.summary}"
        return scenario_as_toml(replace(scenario, name=self._plan.saved_as or scenario.name), summary=summary)
