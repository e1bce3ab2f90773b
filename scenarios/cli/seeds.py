"""`ddpsim run --seeds 0..99`: run one scenario with many seeds, count the outcomes, and show one unexpected run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.status import ExitStatus, worst_status
from ddpsim.simulator.policies.named import DRAWING, join_names, uses_seed

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.cli.judgement import Judgement

_MOST = 1_000_000


def parse_seeds(text: str, policy: str, seed: int) -> range:
    """Return the seeds of a text like "0..99", both ends included.

    Raises UsageError for any other text, for a scheduling policy that uses no seed, and if option `seed` is given as
    well.
    """
    from ddpsim import UsageError

    if seed:
        raise UsageError(f"found --seed {seed} and --seeds {text}, expected only one: leave one of them out")
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if not first <= last < first + _MOST:
        raise UsageError(f"seeds are {text!r}, expected FIRST..LAST, such as 0..99: correct it")
    if not uses_seed(policy):
        raise UsageError(
            f"policy is {policy!r}, which uses no seed, expected {join_names(DRAWING)} with --seeds: "
            "leave one of them out"
        )
    return range(first, last + 1)


@dataclass
class SeedOutcomes:
    """The outcomes of runs with many seeds: their counts, and the one run to show in full."""

    seeds: dict[str, list[int]] = field(default_factory=dict)
    """For each outcome, the seeds whose runs had this outcome."""
    statuses: list[ExitStatus] = field(default_factory=list)
    _shown: tuple[Result, Judgement] | None = None

    def add_run(self, seed: int, result: Result, judgement: Judgement) -> None:
        """Count a run. Keep the run if it is the most interesting to show so far."""
        from ddpsim.scenarios.model import outcome_text

        self.seeds.setdefault(outcome_text(result), []).append(seed)
        self.statuses.append(judgement.status)
        if self._shown is None or _priority_to_show(result, judgement) > _priority_to_show(*self._shown):
            self._shown = result, judgement

    @property
    def run_to_show(self) -> Result:
        """The run to show: the first unexpected run; if there is none, the first that did not pass; otherwise the first
        run."""
        assert self._shown is not None, "there is a seed"
        return self._shown[0]

    @property
    def judgement(self) -> Judgement:
        """The exit status over all seeds, and a line with the first unexpected outcome and the number of unexpected
        outcomes."""
        from ddpsim.scenarios.cli.judgement import Judgement

        count, others = len(self.statuses), sum(status is not ExitStatus.AS_EXPECTED for status in self.statuses)
        if not others:
            which = f"each of {count} seeds" if count > 1 else f"seed {min(map(min, self.seeds.values()))}"
            return Judgement(ExitStatus.AS_EXPECTED, f"as expected with {which}")
        assert self._shown is not None
        return Judgement(worst_status(self.statuses), f"{self._shown[1].line}; with {others} of {count} seeds")

    @property
    def text(self) -> str:
        """A table of the outcomes with their counts and first seeds; below it the run to show, unless it passed."""
        from ddpsim import Verdict

        rows = sorted(self.seeds.items(), key=lambda row: (-len(row[1]), row[1][0]))
        width = len(str(len(rows[0][1])))
        table = [f"{len(seeds):>{width}}  {found}  (first with seed {seeds[0]})" for found, seeds in rows]
        if self.run_to_show.verdict is not Verdict.PASS:
            table += ["", str(self.run_to_show)]
        elif self.run_to_show.not_struck:
            table.append(f"note  in the first passing run {self.run_to_show.not_struck}")
        return "\n".join([*table, ""])


def run_seeds(seeds: range, run: Callable[[int], Result], judge: Callable[[Result], Judgement]) -> SeedOutcomes:
    """Run the scenario with each seed and count the outcomes; a terminal shows a progress bar."""
    outcomes = SeedOutcomes()
    results = ((seed, run(seed)) for seed in seeds)
    for seed, result in output.with_progress_bar(results, len(seeds)):
        outcomes.add_run(seed, result, judge(result))
    return outcomes


def _priority_to_show(result: Result, judgement: Judgement) -> int:
    """Return the priority of showing a run: highest for an unexpected outcome, then for a run that did not pass."""
    from ddpsim import Verdict

    return 2 * (judgement.status is not ExitStatus.AS_EXPECTED) + (result.verdict is not Verdict.PASS)
