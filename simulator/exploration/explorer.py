"""The loop of an exploration: runs executions until all schedules are covered, one fails, or the budget is used up.

Also the determinism check, on which replay, shrinking and searches rely: it runs each schedule twice.
"""

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import ChoicePoint, Policy, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice, RecordedRun, find_nondeterminism
from ddpsim.simulator.events import NOT_EXPLORED
from ddpsim.simulator.exploration.exploration import Exploration, ExplorationEnd, Progress
from ddpsim.simulator.exploration.outcomes import Outcome, count_outcomes, outcome_of_result
from ddpsim.simulator.exploration.strategy import Strategy
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.result import Result, RunInterrupted
from ddpsim.simulator.verdict import Code, Verdict

Run = Callable[[Policy, Budget], Result]
"""A function that runs one execution under a policy, within the budget that is left to the exploration."""

OnProgress = Callable[[Progress], object]


_P = TypeVar("_P")


def report_progress(on_progress: Callable[[_P], object] | None, progress: _P) -> Callable[[_P], object] | None:
    """Call a user's progress function, if there is one; return the function, or None if there is none or it raised."""
    if on_progress is not None:
        try:
            on_progress(progress)
        except Exception as error:  # an error in the function must not lose the results
            warnings.warn(f"on_progress raised {error!r}, and is not called any more", stacklevel=3)
            return None
    return on_progress


class Explorer:
    """Runs one exploration, and keeps its results so far."""

    def __init__(
        self,
        strategy: Strategy,
        run: Run,
        budget: Budget,
        *,
        keep_going: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._strategy = strategy
        self._run = run
        self._budget = budget
        self._keep_going = keep_going
        self._on_progress = on_progress
        self._covering: int | None = None
        """After how many executions the strategy began to draw schedules; None if it has not."""
        self._started = time.monotonic()
        self._executions = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        self._first: dict[Verdict, Result] = {}
        """By verdict, the first execution that had it."""
        self._ends_early = ""
        """Words for where executions stopped to be varied, if any did before its end."""
        self._unchecked: dict[str, str] = {}
        self._interrupted: Result | None = None
        """The execution that Ctrl-C ended."""

    def explore(self, program: str) -> Exploration:
        """Run executions until the exploration ends. Ctrl-C ends the exploration and keeps the results so far."""
        try:
            end = self._run_executions()
        except KeyboardInterrupt as pressed:
            end = ExplorationEnd.INTERRUPT
            self._interrupted = pressed.result if isinstance(pressed, RunInterrupted) else None
        is_complete = self._strategy.is_complete and end is ExplorationEnd.COVERED
        return Exploration(
            program=program,
            executions=self._executions,
            complete=is_complete,
            verdict=self._overall_verdict(is_complete),
            first_failure=self._first.get(Verdict.FAIL),
            first_pass=self._first.get(Verdict.PASS),
            outcomes=count_outcomes(self._outcomes),
            end=end,
            seconds=self._elapsed_seconds,
            limits=" ".join(filter(None, (self._strategy.limits, self._ends_early))),
            outside=getattr(self._strategy, "outside", ""),
            untested=getattr(self._strategy, "untested", ""),
            drawn=0 if self._covering is None else self._executions - self._covering,
            unchecked=tuple(self._unchecked.values()),
            interrupted_run=self._interrupted,
        )

    def _run_executions(self) -> ExplorationEnd:
        while (policy := self._strategy.next_policy()) is not None:
            left = self._budget.seconds - self._elapsed_seconds
            if self._verdicts[Verdict.FAIL] and not self._keep_going:
                return ExplorationEnd.FAILURE
            if self._executions >= self._budget.executions or left <= 0:
                return ExplorationEnd.BUDGET
            draw = getattr(self._strategy, "draw_from_now_on", None)
            if draw is not None and self._covering is None and self._is_last_tenth(left):
                self._covering = self._executions
                draw()
                continue
            try:
                result = self._run(policy, dataclasses.replace(self._budget, seconds=left))
                finding = self._strategy.take(result)
            except RedundantRun:
                continue
            if finding is not None:
                with_it = dataclasses.replace(result, findings=(finding, *result.findings))
                result = with_it.with_replay(result.replay)
            if any(note.startswith(NOT_EXPLORED) for note in result.notes):
                self._ends_early = "up to the error of a closed connection"
            self._unchecked = result.unchecked | self._unchecked
            self._executions += 1
            self._outcomes[outcome_of_result(result)] += 1
            self._verdicts[result.verdict] += 1
            self._first.setdefault(result.verdict, result)
            failures = self._verdicts[Verdict.FAIL]
            progress = Progress(self._executions, failures, self._elapsed_seconds, self._strategy.coverage)
            self._on_progress = report_progress(self._on_progress, progress)
            if finding is not None and finding.code is Code.NONDETERMINISM:
                return ExplorationEnd.FAILURE  # the remaining schedules come from executions that do not repeat
        # An execution whose budget ran out has further schedules.
        return ExplorationEnd.BUDGET if self._verdicts[Verdict.UNKNOWN] else ExplorationEnd.COVERED

    def _is_last_tenth(self, seconds: float) -> bool:
        """Return whether nothing has failed, and a tenth of the executions or of the seconds is left."""
        budget = self._budget
        few = self._executions >= budget.executions - budget.executions // 10 or seconds < budget.seconds / 10
        return few and not self._verdicts[Verdict.FAIL]

    def _overall_verdict(self, is_complete: bool) -> Verdict:
        if self._verdicts[Verdict.FAIL]:
            return Verdict.FAIL
        return Verdict.PASS if is_complete and not self._verdicts[Verdict.UNKNOWN] else Verdict.UNKNOWN

    @property
    def _elapsed_seconds(self) -> float:
        return time.monotonic() - self._started


def run_twice(run: Callable[[Policy], Result], policy: Policy) -> Result:
    """Run an execution twice under equal choices; add a `nondeterminism` finding to the first result if they differ."""
    first = _RecordingPolicy(policy)
    result = run(first)
    second = _RecordingPolicy(GuidedPolicy(first.choices))
    again = run(second)
    runs = RecordedRun(tuple(first.offers), result.trace), RecordedRun(tuple(second.offers), again.trace)
    finding = find_nondeterminism(*runs)
    if finding is None:
        return result
    return dataclasses.replace(result, findings=(finding, *result.findings)).with_replay(result.replay)


class _RecordingPolicy:
    """Wraps a policy and records its choice points and its choices."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.observer = getattr(policy, "observer", None)
        self.offers: list[OfferedChoice] = []
        self.choices: list[int] = []

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        self.offers.append(OfferedChoice(point, tuple(options)))
        choice = self._policy.choose(point, options)
        self.choices.append(choice)
        return choice
