"""Write the calls of a program as a pytest test in plain torch.distributed, for people to read and change.

Calls common to all ranks come first, then a branch for each group of ranks that continue equally. Repeated calls become
a loop. The comment after each call names the line of the job that made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ddpsim.scenarios.ranks.calls import CALLS
from ddpsim.simulator.programs.program import DEFAULT, Issue, Program
from ddpsim.simulator.programs.validation import members_of
from ddpsim.simulator.records.record_texts import plain

_LONGEST_LOOP = 16


def test_of(program: Program, *, function: str, summary: str, command: str) -> str:
    """Return the text of a file with one test, which fails as the program does. `command` is what made it."""
    ranks = [[_line(step, program) for step in steps if isinstance(step, Issue)] for steps in program.ranks]
    body = [f"groups[{json.dumps(name)}] = {made}" for name, made in _groups(program)]
    if body:
        body.insert(0, "groups = {}")
    shared = [lines[0] for lines in takewhile(_are_alike, zip(*ranks, strict=False))]
    body += ["works = []", *_looped(shared), *_branches([lines[len(shared) :] for lines in ranks])]
    body += ["for work in works:", "    work.wait()"]
    return _FILE.format(
        summary=_plain(summary),
        command=_plain(command),
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


def _plain(text: str) -> str:
    """Return a text as one line that ends no docstring or comment, and escapes nothing."""
    return " ".join(plain(text).replace("\\", "/").replace('"', "'").split())


def _are_alike(lines: Sequence[str]) -> bool:
    return len(set(lines)) == 1


def _groups(program: Program) -> Iterator[tuple[str, str]]:
    for group in program.groups:
        yield group.name, f"dist.new_group({list(group.ranks)}, group_desc={json.dumps(group.name)})"


def _branches(ranks: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a branch for each different continuation, with its ranks."""
    ways: dict[tuple[str, ...], list[int]] = {}
    for rank, lines in enumerate(ranks):
        ways.setdefault(tuple(lines), []).append(rank)
    told = [(lines, those) for lines, those in ways.items() if lines]
    for number, (lines, those) in enumerate(told):
        is_rest = number > 0 and number == len(ways) - 1
        which = "else" if is_rest else f"{'elif' if number else 'if'} {_is_one_of(those, len(ranks))}"
        yield f"{which}:"
        yield from (f"    {line}" for line in _looped(lines))


def _is_one_of(those: Sequence[int], world_size: int) -> str:
    if len(those) == 1:
        return f"rank == {those[0]}"
    if len(those) == world_size - 1:
        (other,) = set(range(world_size)) - set(those)
        return f"rank != {other}"
    if len(those) > 2 and list(those) == list(range(those[0], those[-1] + 1)):
        return f"{those[0]} <= rank <= {those[-1]}"
    return f"rank in {tuple(those)}"


def _looped(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines; repeated lines become a loop."""
    at = 0
    while at < len(lines):
        length, times = max(_loops(lines, at), key=lambda loop: (loop[0] * loop[1], -loop[0]), default=(1, 1))
        if times > 1:
            yield f"for _ in range({times}):"
        yield from (f"    {line}" if times > 1 else line for line in lines[at : at + length])
        at += length * times


def _loops(lines: Sequence[str], at: int) -> Iterator[tuple[int, int]]:
    """Yield each possible length of a repeated block at a line, with how often it repeats."""
    for length in range(1, min(_LONGEST_LOOP, (len(lines) - at) // 2) + 1):
        block, times = lines[at : at + length], 1
        while lines[at + length * times : at + length * (times + 1)] == block:
            times += 1
        if times > 1:
            yield length, times


# --- one call ---------------------------------------------------------------------------------------------------------


def _line(issue: Issue, program: Program) -> str:
    size = len(members_of(program)[issue.group])
    function, *arguments = CALLS[issue.operation].text(issue, size)
    if issue.group != DEFAULT:
        arguments.append(f"group=groups[{json.dumps(issue.group)}]")
    if function not in ("isend", "irecv"):
        arguments.append("async_op=True")
    elif issue.tag:
        arguments.append(f"tag={issue.tag}")
    place = f"  # {_plain(issue.at)}" if issue.at else ""
    return f"works.append(dist.{function}({', '.join(arguments)})){place}"
