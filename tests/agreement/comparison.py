"""Do the simulator and real gloo agree about a program?

- The simulator passes it: on gloo every rank returns, with the same results, bit for bit except for what sums round
  (rounding.py).
- The simulator fails it: on gloo some rank hangs, raises or dies, unless gloo does not check what is wrong
  (silent.py). A rank that crashes on the simulator raises the same on gloo, and is not enough where more is wrong.
- `check` finds the same as `simulate`, with the same culprits: a third witness.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim import Code, Finding, Result, Verdict, simulate
from ddpsim.scenarios.jobs.rank_report import RankEnding, RankReport
from ddpsim.scenarios.ranks.interpreter import TensorValues, run_rank_steps, site_of_step
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.programs.check import CheckedProgram, MatchedCall, check_program
from ddpsim.simulator.programs.program import CRASH, Program
from tests.agreement import silent
from tests.agreement.gloo import GlooError, on_gloo
from tests.agreement.labelled import LabelledProgram
from tests.agreement.rounding import bounds, rounds
from tests.agreement.silent import Silence

_PATIENCE_SECONDS = 10.0
"""For what the simulator passes: it ends by itself, and if it does not, that is to be beyond doubt."""

_DIST_ERRORS = (dist.DistError, dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
_MADE = {
    RankEnding.DIED: {"signal SIGABRT", "signal SIGSEGV"},
    RankEnding.RAISED: {each.__name__ for each in (InjectedCrashError, RuntimeError, *_DIST_ERRORS)},
}
"""What gloo and programs end ranks with. Another signal was sent by the system, another error is one of ours: neither
says anything about the program.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What simulator and gloo said about a program."""

    labelled: LabelledProgram
    found: tuple[Code, ...]
    """What fails on the simulator; () if it passes the program."""
    reports: tuple[RankReport, ...]
    """What became of each rank on gloo."""
    silence: Silence | None = None
    """Why gloo let the program through although the simulator fails it."""
    disagreement: str = ""
    """One line; "" if they agree."""

    @property
    def endings(self) -> tuple[RankEnding, ...]:
        """By rank, on gloo."""
        return tuple(report.ending for report in self.reports)


def compared(programs: Iterable[LabelledProgram], *, timeout_seconds: float) -> Iterator[Comparison]:
    """Run each on both, and say whether they agree, in order.

    One that the simulator fails hangs on gloo once nothing in it has moved for `timeout_seconds`. Raises GlooError if a
    rank came to an end that neither gloo nor the program made.
    """
    simulations: deque[tuple[LabelledProgram, Result]] = deque()

    def given() -> Iterator[tuple[Program, float]]:
        for labelled in programs:
            result = simulated(labelled.program)
            simulations.append((labelled, result))
            passes = result.verdict is Verdict.PASS
            yield labelled.program, max(timeout_seconds, _PATIENCE_SECONDS) if passes else timeout_seconds

    for reports in on_gloo(given()):
        labelled, result = simulations.popleft()
        check_made_by_gloo(labelled, reports)
        yield compare(labelled, result, reports)


def check_made_by_gloo(labelled: LabelledProgram, reports: Sequence[RankReport]) -> None:
    """Raise GlooError if it was neither gloo nor the program that ended a rank."""
    for report in reports:
        text = what_it_said(report)
        if report.ending in _MADE and text.partition(":")[0] not in _MADE[report.ending]:
            raise GlooError(
                f"rank {report.rank} of seed {labelled.seed} {report.ending.value} ({text}), expected an ending that "
                "comes from gloo or the program: see whether the machine is short of memory or disk, and run it again"
            )


def what_it_said(report: RankReport) -> str:
    """What a rank raised or died of; "" for one that returned or hung."""
    return report.error.line if report.error else report.death


def simulated(program: Program) -> Result:
    """What the simulator says."""
    return simulate(run_rank_steps, program.world_size, args=(program,), name="program")


def compare(labelled: LabelledProgram, result: Result, reports: Sequence[RankReport]) -> Comparison:
    """Set what the simulator said beside what became of each rank on gloo."""
    checked = check_program(labelled.program, site_of=site_of_step)
    found = _failing(result.findings)
    problem = _witness_problem(checked, result) or next(_problems(checked, result, reports), "")
    silence = None
    if found and not problem and not _went_wrong(found, reports):
        silence = silent.why(labelled.program, checked)
        who = "every other rank" if result.errors else "every rank"
        problem = "" if silence else f"the simulator finds {_codes(found)}, but on gloo {who} returned"
    codes = tuple(finding.code for finding in found)
    return Comparison(labelled, codes, tuple(reports), silence, problem)


def _failing(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.code.verdict is not Verdict.PASS]


def _codes(findings: Sequence[Finding]) -> str:
    return ", ".join(str(finding.code) for finding in findings) or "nothing"


def _witness_problem(checked: CheckedProgram, result: Result) -> str:
    ours, theirs = ([(each.code, each.ranks) for each in one.findings] for one in (checked, result))
    if ours == theirs:
        return ""
    sides = [", ".join(f"{code} of {list(ranks)}" for code, ranks in side) or "nothing" for side in (ours, theirs)]
    return f"check finds {sides[0]}, but simulate finds {sides[1]}"


def _problems(checked: CheckedProgram, result: Result, reports: Sequence[RankReport]) -> Iterator[str]:
    if result.verdict is Verdict.PASS:
        for rank, report in enumerate(reports):
            if report.ending is not RankEnding.RETURNED:
                told = f": {text}" if (text := what_it_said(report)) else ""
                yield f"the simulator finds nothing, but on gloo rank {rank} {report.ending.value}{told}"
        yield from _differences(checked, result, reports)
    for rank in result.errors:
        if CRASH not in what_it_said(reports[rank]):
            yield f"rank {rank} crashes on the simulator, but on gloo it {reports[rank].ending.value}"


def _went_wrong(found: Sequence[Finding], reports: Sequence[RankReport]) -> bool:
    """True if a rank came to no good end, other than those whose crash explains it."""
    crashed = {rank for each in found if each.code is Code.RANK_ERROR for rank in each.ranks}
    needs_more = any(each.code is not Code.RANK_ERROR for each in found)
    ends = [out.ending for rank, out in enumerate(reports) if not (needs_more and rank in crashed)]
    return any(ending is not RankEnding.RETURNED for ending in ends)


# --- results ----------------------------------------------------------------------------------------------------------


def _differences(checked: CheckedProgram, result: Result, reports: Sequence[RankReport]) -> Iterator[str]:
    met = {(call.rank, call.issue.name): calls for calls in checked.met for call in calls}
    for rank, report in enumerate(reports):
        ours, theirs = result.returns[rank], pickle.loads(report.value or b"")
        if list(ours) != list(theirs):
            yield f"rank {rank} waited for {list(ours)} on the simulator, but for {list(theirs)} on gloo"
            continue
        for name in ours:
            difference = _difference(ours[name], theirs[name], met[rank, name], rank)
            if difference:
                yield f"{name!r} on rank {rank}: {difference}"


def _difference(
    ours: Sequence[TensorValues], theirs: Sequence[TensorValues], met: Sequence[MatchedCall], rank: int
) -> str:
    """In words; "" if there is none beyond what the order of a sum explains."""
    ours, theirs = [_normal(each) for each in ours], [_normal(each) for each in theirs]
    if [each[:2] for each in ours] != [each[:2] for each in theirs]:
        return "outputs of other dtypes or shapes"
    if ours == theirs:
        return ""
    if not rounds(met):
        number = next(number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        return f"output {number} is {_shown(ours[number])} on the simulator, {_shown(theirs[number])} on gloo"
    for mine, other, bound in zip(ours, theirs, bounds(met, rank), strict=True):
        apart = (_tensor(mine).double() - _tensor(other).double()).abs()
        if not bool((apart <= bound).all()):  # also for NaN
            return f"results are {float(apart.max())} apart, expected at most {float(bound.max())}"
    return ""


def _normal(output: TensorValues) -> TensorValues:
    """With 1 for true: gloo adds bools as bytes, and 2 is as true."""
    return output._replace(content=bytes(map(bool, output.content))) if output.dtype == "bool" else output


def _tensor(output: TensorValues) -> Tensor:
    dtype: torch.dtype = getattr(torch, output.dtype)
    if not output.content:
        return torch.empty(output.shape, dtype=dtype)
    return torch.frombuffer(bytearray(output.content), dtype=dtype).reshape(output.shape)


def _shown(output: TensorValues) -> str:
    return str(_tensor(output).flatten()[:6].tolist())
