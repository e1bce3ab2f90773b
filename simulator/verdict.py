"""Verdicts and findings: the outcome of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.wording import LabelledLine


class Verdict(Enum):
    """The outcome of a run. Fail wins over unknown, and unknown over pass. A run out of budget is unknown."""

    PASS = "pass"
    UNKNOWN = "unknown"
    FAIL = "fail"


class Code(str, Enum):
    """The codes of findings. A code is a string, so `finding.code == "deadlock.cycle"` holds."""

    MISMATCH_OPERATION = "mismatch.operation"
    MISMATCH_SHAPE = "mismatch.shape"
    MISMATCH_DTYPE = "mismatch.dtype"
    MISMATCH_REDUCTION = "mismatch.reduction"
    MISMATCH_ROOT = "mismatch.root"
    MISMATCH_SPLITS = "mismatch.splits"
    MISMATCH_GROUP = "mismatch.group"
    MISMATCH_ORIGIN = "mismatch.origin"
    MISMATCH_VALUE = "mismatch.value"
    DEADLOCK_CYCLE = "deadlock.cycle"
    DEADLOCK_MISSING_RANK = "deadlock.missing_rank"
    DEADLOCK_DEAD_RANK = "deadlock.dead_rank"
    DEADLOCK_THREADS = "deadlock.threads"
    RANK_ERROR = "rank_error"
    STUCK = "stuck"
    DIVERGENCE_PARAMETERS = "divergence.parameters"
    DIVERGENCE_BUFFERS = "divergence.buffers"
    DIVERGENCE_GRADIENTS = "divergence.gradients"
    HAZARD_GROUP_ORDER = "hazard.group_order"
    HAZARD_UNWAITED_WORK = "hazard.unwaited_work"
    HAZARD_TENSOR_IN_FLIGHT = "hazard.tensor_in_flight"
    HAZARD_UNDEFINED_RESULT = "hazard.undefined_result"
    HAZARD_DROPPED_RESULT = "hazard.dropped_result"
    HAZARD_TENSOR_ORDER = "hazard.tensor_order"
    HAZARD_CALL_SITE = "hazard.call_site"
    HAZARD_SAMPLER = "hazard.sampler"
    HAZARD_THREAD_ERROR = "hazard.thread_error"
    HAZARD_SHARED_PROCESS = "hazard.shared_process"
    NONDETERMINISM = "nondeterminism"
    BUDGET = "budget"
    UNCHECKED = "unchecked"

    def __str__(self) -> str:
        return self.value

    @property
    def verdict(self) -> Verdict:
        """The verdict of a run whose worst finding has this code."""
        if self.value.startswith("hazard."):
            return Verdict.PASS
        return Verdict.UNKNOWN if self in (Code.BUDGET, Code.UNCHECKED) else Verdict.FAIL


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that was found in a run. `str(finding)` is the whole diagnosis."""

    code: Code
    ranks: tuple[int, ...]
    """The ranks that caused the problem, not those that suffer from it."""
    summary: str
    """The finding in one line, without the code."""
    lines: tuple[str | LabelledLine, ...] = ()
    sites: tuple[Site, ...] = ()
    """Lines of the user's program that the finding names, those of the ranks that caused it first."""
    cycle: tuple[int, ...] = ()
    """For `deadlock.cycle`, the ranks of the cycle in order."""
    calls: tuple[Call, ...] = ()
    """The calls that the finding names: mismatched calls, or calls in which ranks wait."""
    event: int | None = None
    """For `divergence.*`, the index of the event in the trace at which that was found; else None."""
    replay: str = ""
    """The command or call that repeats the run. It is set when the run has ended and its schedule is known."""
    where: tuple[LabelledLine, ...] = field(default=(), compare=False)
    """The lines of `sites` with their source code. It is set when the run has ended, because files have to be read."""

    @property
    def text(self) -> str:
        """The diagnosis in several lines, without source lines and replay line."""
        return "\n".join(map(str, self.lines))

    @property
    def body(self) -> str:
        """The diagnosis with the source lines after its first line, without the replay line."""
        head, separator, rest = (self.text or f"{self.code}  {self.summary}").partition("\n")
        return "\n".join([head, *map(str, self.where)]) + separator + rest

    @property
    def labelled(self) -> tuple[LabelledLine, ...]:
        """The lines of the diagnosis that begin with a label of ddpsim: the cycle, the cause, what to try.

        They contain no text of the program.
        """
        return tuple(line for line in self.lines if isinstance(line, LabelledLine))

    def __str__(self) -> str:
        return f"{self.body}\n{format_replay_line(self.replay)}" if self.replay else self.body


def format_replay_line(replay: str) -> str:
    """Return the last line in the text of a finding or result, which says how to repeat the run."""
    return f"  replay  {replay}"


def worst_verdict_of_findings(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict of the findings; pass if there are none."""
    return worst_verdict(finding.code.verdict for finding in findings)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts: fail, then unknown, then pass; pass if there are none."""
    found = set(verdicts)
    return next((verdict for verdict in (Verdict.FAIL, Verdict.UNKNOWN) if verdict in found), Verdict.PASS)
