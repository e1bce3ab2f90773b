"""The loop of an exploration: runs executions until all schedules are covered, one fails, or the budget is used up.

Also the determinism check, on which replay, shrinking and searches rely: it runs each schedule twice.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import ChoicePoint, Policy, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import Offer, RecordedRun, runs_differ
from ddpsim.simulator.exploration.exploration import End, Exploration, Progress
from ddpsim.simulator.exploration.outcomes import Outcome, counted, outcome_of
from ddpsim.simulator.exploration.strategy import Strategy
from ddpsim.simulator.policies.schedule_replay import Guided
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Verdict

Run = Callable[[Policy, Budget], Result]
"""Runs one execution under a policy, within the rest of the budget."""

OnProgress = Callable[[Progress], object]


_P = TypeVar("_P")


def report_progress(on_progress: Callable[[_P], object] | None, progress: _P) -> Callable[[_P], object] | None:
    """Call a user's progress function, if there is one; return it, or None if it raised."""
    if on_progress is not None:
        try:
            on_progress(progress)
        except Exception as error:  # an error in the function must not lose the results
            warnings.warn(f"on_progress raised {error!r}, and is not called any more", stacklevel=3)
            return None
    return on_progress


class Explorer:
    """One exploration, and its results so far."""

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
        self._started = time.monotonic()
        self._executions = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        self._first: dict[Verdict, Result] = {}
        """The first execution of each verdict."""

    def explore(self, program: str) -> Exploration:
        """Run until the end. Ctrl-C ends the exploration and keeps the results so far."""
        try:
            end = self._loop()
        except KeyboardInterrupt:
            end = End.INTERRUPT
        is_complete = self._strategy.is_complete and end is End.COVERED
        return Exploration(
            program=program,
            executions=self._executions,
            complete=is_complete,
            verdict=self._verdict(is_complete),
            first_failure=self._first.get(Verdict.FAIL),
            first_pass=self._first.get(Verdict.PASS),
            outcomes=counted(self._outcomes),
            end=end,
            seconds=self._seconds,
            limits=self._strategy.limits,
            outside=getattr(self._strategy, "outside", ""),
        )

    def _loop(self) -> End:
        while (policy := self._strategy.next_policy()) is not None:
            left = self._budget.seconds - self._seconds
            if self._verdicts[Verdict.FAIL] and not self._keep_going:
                return End.FAILURE
            if self._executions >= self._budget.executions or left <= 0:
                return End.BUDGET
            try:
                result = self._run(policy, dataclasses.replace(self._budget, seconds=left))
                finding = self._strategy.take(result)
            except RedundantRun:
                continue
            if finding is not None:
                with_it = dataclasses.replace(result, findings=(finding, *result.findings))
                result = with_it.with_replay(result.replay)
            self._executions += 1
            self._outcomes[outcome_of(result)] += 1
            self._verdicts[result.verdict] += 1
            self._first.setdefault(result.verdict, result)
            progress = Progress(self._executions, self._verdicts[Verdict.FAIL], self._seconds, self._strategy.coverage)
            self._on_progress = report_progress(self._on_progress, progress)
            if finding is not None and finding.code is Code.NONDETERMINISM:
                return End.FAILURE  # the remaining schedules come from executions that do not repeat
        # An execution whose budget ran out has further schedules.
        return End.BUDGET if self._verdicts[Verdict.UNKNOWN] else End.COVERED

    def _verdict(self, is_complete: bool) -> Verdict:
        if self._verdicts[Verdict.FAIL]:
            return Verdict.FAIL
        return Verdict.PASS if is_complete and not self._verdicts[Verdict.UNKNOWN] else Verdict.UNKNOWN

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started


def run_twice(run: Callable[[Policy], Result], policy: Policy) -> Result:
    """Run twice under the same choices; return the first result, with a `nondeterminism` finding if they differ."""
    first = _Recorder(policy)
    result = run(first)
    second = _Recorder(Guided(first.choices))
    again = run(second)
    finding = runs_differ(
        RecordedRun(tuple(first.offers), result.trace), RecordedRun(tuple(second.offers), again.trace)
    )
    if finding is None:
        return result
    return dataclasses.replace(result, findings=(finding, *result.findings)).with_replay(result.replay)


class _Recorder:
    """Wraps a policy and records its choice points and its choices."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.observer = getattr(policy, "observer", None)
        self.offers: list[Offer] = []
        self.choices: list[int] = []

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        self.offers.append(Offer(point, tuple(options)))
        choice = self._policy.choose(point, options)
        self.choices.append(choice)
        return choice
