"""What is kept of a campaign: the first failure of each group, shrunk, as a file in the corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim import Budget, Code, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import text_of
from ddpsim.scenarios.fuzzing.campaign_report import Failure
from ddpsim.scenarios.fuzzing.corpus import keep, path_of, record, run_command
from ddpsim.scenarios.fuzzing.plan import Plan
from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario, shrink_scenario
from ddpsim.scenarios.fuzzing.shrinking.size_text import size_text
from ddpsim.scenarios.model import found_text
from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.shrinking.greedy import End

SHRINKING = Budget(executions=5000, seconds=20.0)
"""For each group of failures; who wants it smaller still has `ddpsim shrink`."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A failure in the corpus."""

    failure: Failure
    """As it was found."""
    count: int
    """How many of its group there were."""
    path: Path
    how: str
    """What shrinking made of it."""
    replay: str
    is_known: bool = False
    """It was in the corpus before."""
    is_interrupted: bool = False
    """By Ctrl-C."""

    def __str__(self) -> str:
        group = self.failure.group
        times = "once" if self.count == 1 else f"{self.count} times"
        return "\n".join(
            [
                f"{group.code}  {group.kind} on {group.engine.value}, {times}: found {self.failure.found}, "
                f"expected {self.failure.expected}",
                f"  {'known' if self.is_known else 'saved'}   {self.path}  {self.how}",
                f"  run     {run_command(self.path)}",
                f"  replay  {self.replay}",
            ]
        )


class Keeper:
    """Saves failures as they are found, and shrinks them once there is time."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        self._before = {path.name for path in folder.glob("*.toml")}
        self._provisional: list[Path] = []

    def save(self, failure: Failure) -> Path:
        """Keep it as it is, in case the campaign comes to no good end."""
        path = keep(self._folder, failure)
        self._provisional.append(path)
        return path

    def finish(self, failure: Failure, count: int, *, shrinks: bool) -> Kept:
        """Shrink it, and keep that. Neither Ctrl-C nor a full disk is raised: what has been done until then counts."""
        path = path_of(self._folder, failure)
        kept = Kept(failure, count, path, "not shrunk", run_command(path))
        with CtrlC() as ctrl_c:
            try:
                self.save(failure)
                # A run that hangs takes long to tell, and may leave a thread that spins: one is enough.
                if shrinks and failure.group.code != Code.STUCK:
                    kept = self._shrunk(kept)
                kept = replace(kept, replay=record(kept.path))
            except UsageError as error:  # a disk may be full by now: the summary is worth more than the file
                kept = replace(kept, how=f"{kept.how}; {error}")
        is_known = kept.path.name in self._before
        return replace(kept, is_known=is_known, is_interrupted=kept.is_interrupted or ctrl_c.is_pressed)

    def clear(self, kept: list[Kept]) -> None:
        """Delete what was kept on the way and has been shrunk since."""
        final = {each.path for each in kept}
        for path in self._provisional:
            if path not in final and path.name not in self._before:
                path.unlink(missing_ok=True)

    def _shrunk(self, kept: Kept) -> Kept:
        """As it is once shrunk; as it was if it cannot be."""
        shrunk = _shrunk(kept.path, kept.failure.group.engine)
        if shrunk is None:
            return kept
        if shrunk.end is End.FLAKY:
            return replace(kept, how="not shrunk: it did not fail again under its schedule, so time or chance decides")
        path = keep(self._folder, replace(kept.failure, text=self._text(shrunk)))
        is_interrupted = shrunk.end is End.INTERRUPT
        return replace(kept, path=path, how=_how(shrunk), replay=run_command(path), is_interrupted=is_interrupted)

    def _text(self, shrunk: ShrunkScenario) -> str:
        """The file of what is left; one that names another scenario goes on naming it."""
        scenario, found = shrunk.scenario, shrunk.result.findings[0]
        expected = scenario.expected_by(scenario.engine).text(scenario.world_size)
        summary = f"found {found_text(shrunk.result)}, expected {expected}: {found.summary}"
        return text_of(replace(scenario, name=self._plan.saved_as or scenario.name), summary=summary)


def _shrunk(path: Path, engine: Engine) -> ShrunkScenario | None:
    """None for what does not fail in one run, such as numbers in which two engines differ, or what raises in ours."""
    try:
        return shrink_scenario(str(path), engine, budget=SHRINKING)
    except Exception:
        return None


def _how(shrunk: ShrunkScenario) -> str:
    before, after = (size_text(shrunk.scenario, size) for size in (shrunk.size_before, shrunk.size))
    return f"shrunk from {before} to {after}{'' if shrunk.is_minimal else ', which may not be the least'}"
