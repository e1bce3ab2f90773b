"""The loop of an exploration: runs executions until all schedules are covered, one fails, or the budget is used up.

Also the determinism check, on which replay, shrinking and searches rely: it runs each schedule twice. And outcomes: the
result of an execution as a short text, equal for all executions with equal results. An outcome has the verdict and the
findings with their ranks, but no times. So equivalent schedules have the same outcome, whichever schedule was run.

Numbers in returned values have six digits, since further digits depend on the processor. A value of an unknown type is
shown as its type: its repr may contain an id(), which differs between runs.
"""

import dataclasses
import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import ChoicePoint, Policy, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import (
    OfferedChoice,
    RecordedRun,
    differing_outcome_finding,
    find_nondeterminism,
)
from ddpsim.simulator.events import NOT_EXPLORED
from ddpsim.simulator.exploration.exploration import Exploration, ExplorationEnd, Progress
from ddpsim.simulator.exploration.strategy import Strategy
from ddpsim.simulator.exploration.workers import WorkersLostError
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.result import Result, RunInterrupted
from ddpsim.simulator.verdict import Code, Finding, Verdict
from ddpsim.simulator.wording import rank_list


class Outcome(NamedTuple):
    """The result of one execution, as text."""

    judgement: str
    """The verdict and the findings."""
    returned: str
    """The values that the ranks returned, if the execution passed."""


def outcome_of_result(result: Result) -> Outcome:
    """Return the outcome of an execution."""
    judgement = "  ".join([result.verdict.value, *sorted({_finding_text(each) for each in _stable_findings(result)})])
    return Outcome(judgement, value_text(result.returns) if result.verdict is Verdict.PASS else "")


def count_outcomes(outcomes: Counter[Outcome]) -> Counter[str]:
    """Count outcomes by their text. The text has the returned values only if executions differ in them."""
    variants = Counter(outcome.judgement for outcome in outcomes)
    counts = Counter[str]()
    for (judgement, returned), count in outcomes.items():
        counts[judgement if variants[judgement] == 1 else f"{judgement}  returned {returned}"] = count
    return counts


def _stable_findings(result: Result) -> list[Finding]:
    """Return the findings (errors) that do not depend on the progress of other ranks.

    A mismatch ends a run at once, so it is chance whether an uninvolved rank raised an error before: such errors are
    left out. So are the hazards of a run that did not pass.
    """
    mismatches = [each for each in result.findings if each.code.value.startswith("mismatch.")]
    if mismatches:
        return [each for each in result.findings if each in mismatches or each.code is Code.NONDETERMINISM]
    is_pass = result.verdict is Verdict.PASS
    return [each for each in result.findings if is_pass or not each.code.value.startswith("hazard.")]


def _finding_text(finding: Finding) -> str:
    return f"{finding.code} {rank_list(finding.ranks)}" if finding.ranks else str(finding.code)


_LONGEST = 80
_MOST_NUMBERS = 4096
"""A tensor with more numbers than this is shown by its first numbers and their sum."""
_DEEPEST = 20


def value_text(value: Any) -> str:
    """Return a value that a rank returned as text; a long text is cut, and ends in a digest of the whole text."""
    text = _nested_value_text(value, 0)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: _LONGEST - 15].rstrip()}... #{digest}"


def _nested_value_text(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        return "..."
    inside = partial(_nested_value_text, depth=depth + 1)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, complex, str, bytes)):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(inside, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{inside(key)}: {inside(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(inside, value))) + "}"
    try:
        return _object_text(value, inside)
    except Exception:  # the user's code raised, or a tensor has no numbers (meta)
        return type(value).__name__


def _object_text(value: Any, inside: Callable[[Any], str]) -> str:
    """Return an object as text; `inside` is a function that returns the text of a value inside the object."""
    name = type(value).__name__
    if isinstance(value, BaseException):
        return f"{name}({value})"
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(f"{field.name}={inside(getattr(value, field.name))}" for field in fields(value))
        return f"{name}({inner})"
    if callable(getattr(value, "tolist", None)):  # a tensor, or an array or number of numpy's
        shape = list(value.shape)
        if prod(shape) <= _MOST_NUMBERS:
            return inside(value.tolist())
        return f"{inside(value.flatten()[:8].tolist())[:-1]}, ...] of {shape} with sum {inside(value.sum().item())}"
    if callable(getattr(value, "state_dict", None)):
        return f"{name}({inside(dict(value.state_dict()))})"
    return name


RunPolicy = Callable[[Policy, Budget], Result]
"""A function that runs one execution under a policy, within the budget that is left to the exploration."""

OpenRun = Callable[[], AbstractContextManager[RunPolicy]]
"""A function that makes ready what runs executions; it can be sent to another process."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What an exploration keeps of one execution."""

    outcome: Outcome
    verdict: Verdict
    choices: tuple[int, ...]
    finding: Finding | None
    """The finding of the strategy, which the run itself does not have."""
    unchecked: dict[str, str]
    ends_early: bool
    """True if schedules were varied only up to the error of a closed connection."""
    result: Result | None
    """The result; None if another process has it."""


def run_policy(strategy: Strategy, run: RunPolicy, policy: Policy, budget: Budget, seconds: float) -> Execution | None:
    """Run the execution that a strategy chose, and let the strategy learn from it. Return None if it does not count."""
    try:
        result = run(policy, dataclasses.replace(budget, seconds=seconds))
        finding = strategy.take(result)
    except RedundantRun:
        return None
    result = with_finding(result, finding)
    ends_early = any(note.startswith(NOT_EXPLORED) for note in result.notes)
    outcome, choices = outcome_of_result(result), result.schedule.choices
    return Execution(outcome, result.verdict, choices, finding, result.unchecked, ends_early, result)


def with_finding(result: Result, finding: Finding | None) -> Result:
    """Return the result with a further finding, if there is one."""
    if finding is None:
        return result
    return dataclasses.replace(result, findings=(finding, *result.findings)).with_replay(result.replay)


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
        open_run: OpenRun,
        budget: Budget,
        parts: Any = None,
        *,
        keep_going: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._strategy = strategy
        self._open_run = open_run
        self._budget = budget
        self._parts = parts
        """The ExecutionsOfWorkers; None if executions run in this process."""
        self._keep_going = keep_going
        self._on_progress = on_progress
        self._covering: int | None = None
        """After how many executions the strategy began to draw schedules; None if it has not."""
        self._started = time.monotonic()
        self._executions = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        self._first: dict[Verdict, Execution] = {}
        """By verdict, the first execution that had it."""
        self._ends_early = ""
        """Words for where executions stopped to be varied, if any did before its end."""
        self._unchecked: dict[str, str] = {}
        self._interrupted: Result | None = None
        """The execution that Ctrl-C ended."""
        self._lost = ""

    def explore(self, program: str) -> Exploration:
        """Run executions until the exploration ends. Ctrl-C ends the exploration and keeps the results so far."""
        end = self._run_here() if self._parts is None else self._run_on_workers()
        first: dict[Verdict, Result | None] = {}
        try:
            for verdict in (Verdict.FAIL, Verdict.PASS):
                first[verdict] = self._first_result(verdict)
        except KeyboardInterrupt as pressed:
            end = self._end_as_interrupted(pressed)
        is_complete = self._strategy.is_complete and end is ExplorationEnd.COVERED
        return Exploration(
            program=program,
            executions=self._executions,
            complete=is_complete,
            verdict=self._overall_verdict(is_complete),
            first_failure=first.get(Verdict.FAIL),
            first_pass=first.get(Verdict.PASS),
            outcomes=count_outcomes(self._outcomes),
            end=end,
            seconds=self._elapsed_seconds,
            limits=" ".join(filter(None, (self._strategy.limits, self._ends_early))),
            outside=getattr(self._strategy, "outside", ""),
            untested=getattr(self._strategy, "untested", ""),
            drawn=0 if self._covering is None else self._executions - self._covering,
            unchecked=tuple(self._unchecked.values()),
            interrupted_run=self._interrupted,
            lost=self._lost,
        )

    def _run_here(self) -> ExplorationEnd:
        with self._open_run() as run:

            def executions() -> Iterator[Execution | None]:
                while (policy := self._strategy.next_policy()) is not None:
                    yield None
                    yield run_policy(self._strategy, run, policy, self._budget, self._left_seconds)

            return self._count_until_end(executions)

    def _run_on_workers(self) -> ExplorationEnd:
        end = self._count_until_end(lambda: self._parts.in_order(self._strategy))
        self._lost = self._lost or self._parts.lost
        if end not in (ExplorationEnd.COVERED, ExplorationEnd.FAILURE):  # what was found later counts, too
            for execution in self._parts.out_of_order(self._strategy, self._budget.executions - self._executions):
                self._count(execution)
                if execution.verdict is Verdict.FAIL and not self._keep_going:
                    return ExplorationEnd.FAILURE if end is ExplorationEnd.BUDGET else end
        return end

    def _count_until_end(self, executions: Callable[[], Iterator[Execution | None]]) -> ExplorationEnd:
        """Count executions until the exploration ends, and return why. None comes before each one."""
        try:
            while (end := self._count_until_drawn(executions())) is None:
                pass
        except KeyboardInterrupt as pressed:
            return self._end_as_interrupted(pressed)
        except WorkersLostError as error:
            self._lost = str(error)
            return ExplorationEnd.LOST
        return end

    def _end_as_interrupted(self, pressed: KeyboardInterrupt) -> ExplorationEnd:
        self._interrupted = pressed.result if isinstance(pressed, RunInterrupted) else None
        return ExplorationEnd.INTERRUPT

    def _count_until_drawn(self, executions: Iterator[Execution | None]) -> ExplorationEnd | None:
        """Count executions until the exploration ends; return None if the strategy draws schedules from now on."""
        for execution in executions:
            if execution is not None:
                self._count(execution)
                if execution.finding is not None and execution.finding.code is Code.NONDETERMINISM:
                    return ExplorationEnd.FAILURE  # the remaining schedules come from executions that do not repeat
                continue
            if self._verdicts[Verdict.FAIL] and not self._keep_going:
                return ExplorationEnd.FAILURE
            if self._executions >= self._budget.executions or self._left_seconds <= 0:
                return ExplorationEnd.BUDGET
            draw = getattr(self._strategy, "draw_from_now_on", None)
            if draw is not None and self._covering is None and self._is_last_tenth(self._left_seconds):
                self._covering = self._executions
                draw()
                return None
        # An execution whose budget ran out has further schedules; no execution covers nothing.
        is_open = self._verdicts[Verdict.UNKNOWN] or not self._executions
        return ExplorationEnd.BUDGET if is_open else ExplorationEnd.COVERED

    def _count(self, execution: Execution) -> None:
        if execution.ends_early:
            self._ends_early = "up to the error of a closed connection"
        self._unchecked = execution.unchecked | self._unchecked
        self._executions += 1
        self._outcomes[execution.outcome] += 1
        self._verdicts[execution.verdict] += 1
        self._first.setdefault(execution.verdict, execution)
        failures = self._verdicts[Verdict.FAIL]
        progress = Progress(self._executions, failures, self._elapsed_seconds, self._strategy.coverage)
        self._on_progress = report_progress(self._on_progress, progress)

    def _first_result(self, verdict: Verdict) -> Result | None:
        """Return the result of the first execution with that verdict, which is run again if another process ran it."""
        execution = self._first.get(verdict)
        if execution is None:
            return None
        if execution.result is not None:
            return execution.result
        with self._open_run() as run:
            budget = dataclasses.replace(self._budget, seconds=max(self._budget.seconds, 60.0))
            result = with_finding(run(GuidedPolicy(execution.choices), budget), execution.finding)
        first, again = execution.outcome.judgement, outcome_of_result(result).judgement
        if first == again:
            return result
        return with_finding(result, differing_outcome_finding(first, again)) if verdict is Verdict.FAIL else None

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
    def _left_seconds(self) -> float:
        return self._budget.seconds - self._elapsed_seconds

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
