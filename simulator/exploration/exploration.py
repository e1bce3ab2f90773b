"""The result and the progress of an exploration, as values."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.choices import identity_in_words
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Verdict


class ExplorationEnd(Enum):
    """Why an exploration ended."""

    COVERED = "covered"
    """No schedule is left within the strategy's limits."""
    FAILURE = "failure"
    """An execution failed, and `keep_going` was not set."""
    BUDGET = "budget"
    INTERRUPT = "interrupt"
    """The user pressed Ctrl-C."""
    LOST = "lost"
    """The workers died, or the cluster disappeared."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an exploration."""

    executions: int
    failures: int
    seconds: float
    coverage: float | None
    """An estimate of the share of all schedules that is covered, from 0 to 1; None if the policy has none."""

    @property
    def rate(self) -> float:
        """Executions per second so far."""
        return self.executions / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of many executions. `str(exploration)` describes it, and ends in the first failure's replay line."""

    program: str
    executions: int
    complete: bool
    """True if the executions cover every schedule."""
    verdict: Verdict
    """Fail if an execution failed, pass if every schedule is covered, otherwise unknown. So random policies cannot pass
    a program with choices."""
    first_failure: Result | None
    """The first execution that failed; its schedule and its replay line reproduce it."""
    first_pass: Result | None
    """The first execution that passed, for comparison with a failed one; None if none passed."""
    outcomes: Counter[str]
    """How often each outcome occurred. An outcome is the verdict, the findings' codes with their ranks, and the
    returned values if executions that passed differ in them."""
    end: ExplorationEnd
    seconds: float
    limits: str = ""
    """The limit on the schedules that were explored, such as "with at most 2 preemptions"."""
    outside: str = ""
    """Effects between ranks that the strategy does not see, such as "files"."""
    untested: str = ""
    """Used features for which the strategy was not tested, such as "faults": it may leave interleavings out."""
    drawn: int = 0
    """How many of the executions had a random schedule, because the budget of a covering strategy ran out."""
    unchecked: tuple[str, ...] = ()
    """What executions that passed did not check, one note of a kind."""
    interrupted_run: Result | None = None
    """The execution that Ctrl-C ended: where each rank stood."""
    lost: str = ""
    """How a worker process was lost, if one was."""

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended the exploration; results until then are kept."""
        return self.end is ExplorationEnd.INTERRUPT

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}  {identity_in_words(self.program)}", f"  {self.extent}"]
        lines += [f"  {count:>7}  {outcome}" for outcome, count in self.outcomes.most_common()]
        lines += [f"  note    {note}" for note in self.unchecked]
        if self.lost and self.end is not ExplorationEnd.LOST:
            lines.append(f"  note    a worker was lost ({self.lost}); what it ran was run again")
        if self.interrupted_run is not None:
            lines += ["", "the execution under way", *str(self.interrupted_run).splitlines()]
        if self.first_failure is None:
            if self.first_pass is not None and self.first_pass.not_struck:
                lines.append(f"  note    in the first passing run {self.first_pass.not_struck}")
            return "\n".join(lines)
        return "\n".join([*lines, "", str(self.first_failure)])

    @property
    def extent(self) -> str:
        """A sentence on how much was covered."""
        runs = "1 execution" if self.executions == 1 else f"{self.executions} executions"
        limits = f" {self.limits}" if self.limits else ""
        if self.end is ExplorationEnd.COVERED:
            fails = all(outcome.startswith(Verdict.FAIL.value) for outcome in self.outcomes)
            all_fail = ", and every one fails" if fails else ""
            if self.untested:
                unseen = f"but was not tested for {self.untested}, and does not see {self.outside}"
                return f"DPOR ran all interleavings{limits} that it tells apart, {unseen}: {runs}{all_fail}"
            outside = f", but for {self.outside}" if self.outside else ""
            return f"All interleavings{limits} covered{outside}: {runs}{all_fail}"
        if self.end is ExplorationEnd.FAILURE:
            where = "The first execution" if self.executions == 1 else f"Execution {self.executions}"
            return f"{where} failed: stopped there; other interleavings{limits} were not run"
        ended = "interrupted after" if self.interrupted else "the budget ran out after"
        if self.end is ExplorationEnd.LOST:
            ended = f"the workers were lost ({self.lost}) after"
        drawn = f", the last {self.drawn} of them on random schedules" if self.drawn else ""
        return f"Not all interleavings{limits} covered: {ended} {runs}{drawn}"
