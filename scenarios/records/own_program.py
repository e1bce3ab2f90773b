"""Run the program of a recorded job on as many virtual ranks, and report where its calls first differ from the records.

The run is converted to records of the same form, so that both have the same details. Groups have different names in
each job, so groups are matched by the order in which a rank first used them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.simulator.calls import Call
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records import flight_recorder, plain_pickle
from ddpsim.simulator.records.as_flight_recorder import make_dump
from ddpsim.simulator.records.job import RecordedJob
from ddpsim.simulator.records.rank_record import LoggedCall, RankRecord
from ddpsim.simulator.records.run_log import RunLog, make_run_log
from ddpsim.simulator.wording import rank_list

_MOST_RANKS = 8
"""The largest number of differing ranks that are listed."""


def run_and_compare(job: RecordedJob, program: str) -> str:
    """Run a command line on as many ranks as the job has; return lines on how its calls differ from the records."""
    from ddpsim.simulator.api import simulate_program

    words = shlex.split(program)
    if not words:
        raise UsageError("--program is empty, expected a program and its arguments: --program 'train.py --epochs 2'")
    result = simulate_program(words, job.world_size)
    comparison = compare_with_records(job, make_run_log(result.trace, job.world_size))
    found = "nothing on virtual ranks"
    if result.findings:
        leading = result.findings[0]
        found = str(leading.code) + (f", {rank_list(leading.ranks)}" if leading.ranks else "")
    command = f"ddpsim run --world-size {job.world_size} {program}"
    return "\n".join([f"program {program} finds {found}", *_comparison_lines(comparison, job), f"  {command}"])


def _comparison_lines(comparison: "CallComparison", job: RecordedJob) -> list[str]:
    if not comparison.differences:
        return [f"  makes the same calls as the records on {rank_list(job.records)}: {comparison.alike}"]
    first = comparison.differences[0]
    others = [each.rank for each in comparison.differences[1:]]
    count = f"{first.alike} equal call{'s' * (first.alike != 1)}"
    lines = [
        f"  differs from the records first on rank {first.rank}, after {count}",
        f"  record   {_call_text(first.recorded)}",
        f"  program  {_call_text(first.made)}",
    ]
    if others:
        more = f"and {len(others) - _MOST_RANKS} more" if len(others) > _MOST_RANKS else ""
        lines.append(f"  then on {rank_list(others[:_MOST_RANKS])} {more}".rstrip())
    return lines


def _call_text(call: Call | None) -> str:
    return "no more call" if call is None else f"{call}  {call.location}".rstrip()


@dataclass(frozen=True, slots=True)
class CallDifference:
    """The first call of a rank in which the program differs from the record."""

    rank: int
    alike: int
    """The number of equal calls before the first difference."""
    recorded: Call | None
    """The call in the record; None if the record has no more calls."""
    made: Call | None
    """The call of the program; None if the program made no more calls."""


@dataclass(frozen=True, slots=True)
class CallComparison:
    """The calls of a program compared with records."""

    alike: int
    """The number of equal calls, over all ranks."""
    differences: tuple[CallDifference, ...]
    """The first difference of each rank that has one, earliest difference first."""


def compare_with_records(job: RecordedJob, run: RunLog) -> CallComparison:
    """Compare each rank that left a record with the same rank of the run."""
    alike, differences = 0, []
    for rank, record in job.records.items():
        made = flight_recorder.read_dump(plain_pickle.load_plain(make_dump(run, rank)), f"rank_{rank}")
        count, difference = _compare_rank(record, made)
        alike += count
        differences += [] if difference is None else [difference]
    return CallComparison(alike, tuple(sorted(differences, key=lambda each: (each.alike, each.rank))))


def _compare_rank(record: RankRecord, made: RankRecord) -> tuple[int, CallDifference | None]:
    """Return a rank's number of equal calls and first difference; calls after a cut record's end do not count."""
    own, other = _compared_steps(record, record), _compared_steps(record, made)[record.lost :]
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for place, (mine, its) in enumerate(zip(own, other, strict=False)):
        steps = record.call_log.steps[mine], made.call_log.steps[its]
        if _compared_values(steps[0], numbers[0]) != _compared_values(steps[1], numbers[1]):
            return place, CallDifference(record.rank, place, record.calls[mine].call, made.calls[its].call)
    count = min(len(own), len(other))
    if len(own) == len(other) or (record.is_cut and len(own) < len(other)):
        return count, None
    recorded = record.calls[own[count]].call if len(own) > count else None
    extra = made.calls[other[count]].call if recorded is None else None
    return count, CallDifference(record.rank, count, recorded, extra)


def _compared_steps(record: RankRecord, of: RankRecord) -> Sequence[int]:
    """Return the steps of a rank to compare; messages are left out if the recorder does not record them."""
    if record.not_recorded and not record.call_log.message_indices:
        return [index for index, step in enumerate(of.call_log.steps) if step.is_collective]
    return range(len(of.calls))


def _compared_values(step: LoggedCall, numbers: dict[int, int]) -> tuple[object, ...]:
    """Return the values that must be equal in program and record; not all records have reductions, roots and splits."""
    group = numbers.setdefault(step.group, len(numbers))
    signature = step.signature
    return group, signature.operation, signature.shapes, signature.dtype, step.peer
