"""Turn a hang in production into a test: a file for pytest, or a scenario that ddpsim can run and shrink.

The test for pytest is plain torch.distributed, for people to read and change. Calls that all ranks make come first.
Then follows a branch for each set of ranks that continue with the same calls. Repeated calls become a loop. The comment
after each call names the line of the job that made the call.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import DEFAULT, Issue, Program
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.records.as_program import make_program
from ddpsim.simulator.records.record_diagnosis import JobDiagnosis
from ddpsim.simulator.records.record_texts import printable_text
from ddpsim.simulator.verdict import Finding, Verdict
from ddpsim.simulator.wording import ranks_by_value

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Expectation

_LONGEST_LOOP = 16


def check_test_file_name(path: Path) -> None:
    """Raise UsageError for a file type that cannot be written."""
    if path.suffix not in (".py", ".toml"):
        raise UsageError(
            f"--write-test is {str(path)!r}, expected a name that ends in .py (pytest) or .toml (ddpsim): correct it"
        )


def write_failing_test(diagnosis: JobDiagnosis, paths: Sequence[str], path: Path) -> str:
    """Write the test, and return a text on what it finds. Raises UsageError if the records show no failure."""
    if diagnosis.verdict is not Verdict.FAIL:
        raise UsageError("the records show no failure to reproduce in a test: leave --write-test out")
    program = make_program(diagnosis, folder=str(Path.cwd()))
    write = _write_pytest_file if path.suffix == ".py" else _write_scenario
    return write(program, diagnosis.findings[0], paths, path)


def _write_scenario(program: Program, leading: Finding, paths: Sequence[str], path: Path) -> str:
    """Write a scenario, and return a text on what it finds and how to run it."""
    from ddpsim.scenarios.files.saving import save_scenario
    from ddpsim.scenarios.files.value_scenarios import scenario_of_program

    scenario = scenario_of_program(program, name=str(path))
    save_scenario(scenario, path, summary=f"the last calls of {' '.join(paths)}", cause=leading.summary)
    found, quoted = _found_text(scenario.expected, leading, program.world_size), shlex.quote(str(path))
    return f"test    {path} finds {found}\n  ddpsim run {quoted}\n  ddpsim shrink {quoted}"


def _write_pytest_file(program: Program, leading: Finding, paths: Sequence[str], path: Path) -> str:
    """Write a test for pytest, and return a text on what it finds and how to run it."""
    from ddpsim import simulate
    from ddpsim.scenarios.files.saving import write_text
    from ddpsim.scenarios.model import CLEAN, finds

    function = "test_" + re.sub(r"\W", "_", path.stem).removeprefix("test_")
    command = f"ddpsim diagnose {shlex.join(paths)} --write-test {shlex.quote(str(path))}"
    write_text(path, source_of_test(program, function=function, summary=f"{leading.summary}.", command=command))
    findings = simulate(runpy.run_path(str(path))[function], program.world_size).findings
    expected = finds(findings[0].code, findings[0].ranks) if findings else CLEAN
    found = _found_text(expected, leading, program.world_size)
    return f"test    {path} finds {found}\n  pytest {shlex.quote(str(path))}"


def _found_text(expected: Expectation, leading: Finding, world_size: int) -> str:
    """Return a text on what the test finds; with a remark if the records of the job show something else."""
    ranks = expected.ranks(world_size) if callable(expected.ranks) else expected.ranks
    is_same = expected.code is leading.code and tuple(ranks) == leading.ranks
    remark = "" if is_same else f", but the records show {leading.code}: they lack details that the test needs"
    return expected.text(world_size) + remark


def source_of_test(program: Program, *, function: str, summary: str, command: str) -> str:
    """Return the source of a file with one test, which fails like the recorded program. The text quotes `command`."""
    ranks = [[_source_of_call(step, program) for step in steps if isinstance(step, Issue)] for steps in program.ranks]
    body = ["groups = {}"] if program.groups else []
    for group in program.groups:
        name = json.dumps(group.name)
        body.append(f"groups[{name}] = dist.new_group({list(group.ranks)}, group_desc={name})")
    shared = [lines[0] for lines in takewhile(lambda each: len(set(each)) == 1, zip(*ranks, strict=False))]
    body += ["works = []", *_fold_into_loops(shared), *_branches_by_ranks([lines[len(shared) :] for lines in ranks])]
    body += ["for work in works:", "    work.wait()"]
    return _FILE.format(
        summary=_as_plain_line(summary),
        command=_as_plain_line(command),
        world_size=program.world_size,
        function=function,
        body="\n".join(f"    {line}" for line in body),
    )


_FILE = '''"""{summary}

Written by `{command}`.
Each rank issues its calls and then waits for them in order, because no record says where it waited. The test fails as
the job did, and passes once the ranks' calls match. The comment after each call is the line of the job that made it.
"""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks({world_size})
def {function}(rank):
{body}
'''


def _as_plain_line(text: str) -> str:
    """Return a text as one line that is safe in a docstring or comment: it neither ends nor escapes anything."""
    return " ".join(printable_text(text).replace("\\", "/").replace('"', "'").split())


def _branches_by_ranks(ranks: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of an `if` with a branch for each different continuation, under the condition of its ranks."""
    ways = ranks_by_value(enumerate(map(tuple, ranks)))
    for number, (lines, those) in enumerate((lines, those) for lines, those in ways.items() if lines):
        is_rest = number > 0 and number == len(ways) - 1
        which = "else" if is_rest else f"{'elif' if number else 'if'} {_rank_condition(those, len(ranks))}"
        yield f"{which}:"
        yield from (f"    {line}" for line in _fold_into_loops(lines))


def _rank_condition(those: Sequence[int], world_size: int) -> str:
    if len(those) == 1:
        return f"rank == {those[0]}"
    if len(those) == world_size - 1:
        (other,) = set(range(world_size)) - set(those)
        return f"rank != {other}"
    if len(those) > 2 and list(those) == list(range(those[0], those[-1] + 1)):
        return f"{those[0]} <= rank <= {those[-1]}"
    return f"rank in {tuple(those)}"


def _fold_into_loops(lines: Sequence[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        length, times = max(_repeated_blocks(lines, at), key=lambda loop: (loop[0] * loop[1], -loop[0]), default=(1, 1))
        if times > 1:
            yield f"for _ in range({times}):"
        yield from (f"    {line}" if times > 1 else line for line in lines[at : at + length])
        at += length * times


def _repeated_blocks(lines: Sequence[str], at: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks that repeat from a line on: each possible length, with its number of repetitions."""
    for length in range(1, min(_LONGEST_LOOP, (len(lines) - at) // 2) + 1):
        block, times = lines[at : at + length], 1
        while lines[at + length * times : at + length * (times + 1)] == block:
            times += 1
        if times > 1:
            yield length, times


def _source_of_call(issue: Issue, program: Program) -> str:
    from ddpsim.scenarios.ranks.interpreter import source_of_call  # needs torch

    function, *arguments = source_of_call(issue, len(members_of(program)[issue.group]))
    if issue.group != DEFAULT:
        arguments.append(f"group=groups[{json.dumps(issue.group)}]")
    if function not in ("isend", "irecv"):
        arguments.append("async_op=True")
    elif issue.tag:
        arguments.append(f"tag={issue.tag}")
    place = f"  # {_as_plain_line(issue.at)}" if issue.at else ""
    return f"works.append(dist.{function}({', '.join(arguments)})){place}"
