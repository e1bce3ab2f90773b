"""The program of a job, run here on as many virtual ranks, and where its calls first differ from the records."""

from __future__ import annotations

import shlex

from ddpsim.simulator.calls import Call
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.records.journal import journal
from ddpsim.simulator.records.same_calls import Comparison, Difference, compared
from ddpsim.simulator.result import Result
from ddpsim.simulator.wording import rank_list

_MOST_RANKS = 8
"""So many of the ranks that differ are told."""


def run_beside(job: Job, program: str) -> str:
    """Run a program, a command line, on the ranks of the job, and say what it does otherwise. Raises UsageError."""
    from ddpsim.simulator.api import simulate_program

    words = shlex.split(program)
    if not words:
        raise UsageError("--program is empty, expected a program and its arguments: --program 'train.py --epochs 2'")
    result = simulate_program(words, job.world_size)
    comparison = compared(job, journal(result.trace, job.world_size))
    command = f"ddpsim run --world-size {job.world_size} {program}"
    return "\n".join([f"program {program} {_found(result)}", *_lines(comparison, job), f"  {command}"])


def _found(result: Result) -> str:
    if not result.findings:
        return "finds nothing on virtual ranks"
    leading = result.findings[0]
    return f"finds {leading.code}" + (f", {rank_list(leading.ranks)}" if leading.ranks else "")


def _lines(comparison: Comparison, job: Job) -> list[str]:
    if not comparison.differences:
        return [f"  makes the same calls as the records on {rank_list(job.records)}: {comparison.alike}"]
    first = comparison.differences[0]
    others = [each.rank for each in comparison.differences[1:]]
    count = f"{first.alike} call{'s' * (first.alike != 1)} alike"
    lines = [f"  differs from the records first on rank {first.rank}, after {count}"]
    lines += _sides(first)
    if others:
        more = f"and {len(others) - _MOST_RANKS} more" if len(others) > _MOST_RANKS else ""
        lines.append(f"  then on {rank_list(others[:_MOST_RANKS])} {more}".rstrip())
    return lines


def _sides(difference: Difference) -> list[str]:
    return [f"  record   {_text(difference.recorded)}", f"  program  {_text(difference.made)}"]


def _text(call: Call | None) -> str:
    return "no more call" if call is None else f"{call}  {call.location}".rstrip()
