"""Templates: from a draw to a wrong program and its repair.

A template returns the body of `program(rank, size)` as a difference: lines that begin with "-" stand in the wrong
program only, those with "+" in the repaired one only, all others in both. Lines that end in `# here` are to be named.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.scoreboard.case import MARK, Case
from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind

HEAD = """\
import threading
from datetime import timedelta

import torch
import torch.distributed as dist


def program(rank, size):
"""

Body = Callable[[Draw], str]


@dataclass(frozen=True, slots=True)
class Template:
    """What a kind of mistake looks like. One that is `Kind.CORRECT` has no wrong program."""

    name: str
    kind: Kind
    body: Body
    smallest: int
    """World size from which on it makes sense."""

    def cases(self, seed: int, number: int) -> Iterator[Case]:
        """The wrong program of that number and its repair; only depends on the arguments."""
        draw = Draw.of(Random(f"{seed} {self.name} {number}"), self.smallest)
        before, after = draw.surroundings()
        body = self.body(draw).strip("\n")
        for kind in dict.fromkeys([self.kind, Kind.CORRECT]):
            name = f"{self.name}_{number}" if kind is self.kind else f"{self.name}_{number}_right"
            yield Case(name, kind, draw.size, _source(body, before, after, is_right=kind is Kind.CORRECT))


def template(kind: Kind, smallest: int = 2) -> Callable[[Body], Template]:
    """Make a template of a function from a draw to a difference."""

    def made(body: Body) -> Template:
        return Template(body.__name__, kind, body, smallest)

    return made


def templates_of(names: dict[str, object]) -> tuple[Template, ...]:
    """The templates among a module's names, in their order."""
    return tuple(value for value in names.values() if isinstance(value, Template))


def _source(body: str, before: str, after: str, *, is_right: bool) -> str:
    middle = textwrap.dedent("\n".join(_one_side(body, is_right)))
    lines = "\n".join(part for part in (before, middle, after) if part)
    if is_right:
        lines = lines.replace(f"  {MARK}", "")
    return HEAD + textwrap.indent(lines, "    ").rstrip() + "\n"


def _one_side(body: str, is_right: bool) -> Iterator[str]:
    own, other = ("+", "-") if is_right else ("-", "+")
    for line in body.splitlines():
        if line.startswith(own):
            yield f" {line[1:]}"
        elif not line.startswith(other):
            yield line
