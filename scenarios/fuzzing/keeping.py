"""Save the first failure of each group of equal failures in a campaign, shrunk, as a file in the corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim import Budget, Code, UsageError
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.fuzzing.campaign_report import FuzzFailure
from ddpsim.scenarios.fuzzing.corpus import command_for_file, path_of_failure, record_outcome, save_failure
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario, shrink_scenario, size_text
from ddpsim.scenarios.model import outcome_text
from ddpsim.simulator.ctrl_c import CtrlCGuard
from ddpsim.simulator.shrinking.greedy import ShrinkEnd

SHRINKING = Budget(executions=5000, seconds=20.0)
"""The budget for shrinking one failure; `ddpsim shrink` can shrink a saved file further."""


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
            f"  run     {command_for_file(self.path)}",
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
        kept = SavedFailure(failure, count, path, "not shrunk", command_for_file(path))
        with CtrlCGuard() as ctrl_c:
            try:
                self.save_unshrunk(failure)
                # A hang takes long to detect, and may leave a thread that spins: one is enough.
                if shrinks and failure.group.code != Code.STUCK:
                    kept = self._shrink_failure(kept)
                kept = replace(kept, replay=record_outcome(kept.path))
            except UsageError as error:  # the disk may be full: the summary is more important than the file
                kept = replace(kept, how=f"{kept.how}; {error}")
        is_known = kept.path.name in self._before
        return replace(kept, is_known=is_known, is_interrupted=kept.is_interrupted or ctrl_c.is_pressed)

    def delete_unshrunk_files(self, kept: list[SavedFailure]) -> None:
        """Delete the files of unshrunk failures whose shrunk form has been saved since."""
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
        return replace(kept, path=path, how=how, replay=command_for_file(path), is_interrupted=is_interrupted)

    def _shrunk_file_text(self, shrunk: ShrunkScenario) -> str:
        """Return the file text of the shrunk scenario.

        If the original refers to another scenario by name, so does the text.
        """
        scenario, found = shrunk.scenario, shrunk.result.findings[0]
        expected = scenario.expected_by(scenario.engine).text(scenario.world_size)
        summary = f"found {outcome_text(shrunk.result)}, expected {expected}: {found.summary}"
        return scenario_as_toml(replace(scenario, name=self._plan.saved_as or scenario.name), summary=summary)
