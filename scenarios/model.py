"""What a scenario is: a program, the world it runs in, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator import Code, Finding, Result, Verdict
from simulator.diagnosis.explain import rank_list
from simulator.faults import Fault

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a run should come to: its verdict and, if `code` is given, the finding that leads its text."""

    verdict: Verdict = Verdict.PASS
    code: Code | None = None
    ranks: Ranks | Callable[[int], Ranks] = ()
    """The culprits; a function of the world size where they depend on it."""

    def is_met_by(self, result: Result) -> bool:
        """True if `result` came out as expected."""
        if self.code is None:
            return result.verdict is self.verdict
        return self.text(result.world_size) == found_text(result)

    def text(self, world_size: int) -> str:
        """The expectation in a few words, as `found_text` gives what was found."""
        ranks = self.ranks(world_size) if callable(self.ranks) else self.ranks
        return _text(self.verdict, self.code, ranks)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program with its world, its faults and what is expected of it."""

    name: str
    summary: str
    """One line."""
    program: Callable[..., Any]
    """Called as `program(rank, *args)` on every rank."""
    expected: Expectation = Expectation()
    world_size: int = 4
    """How many ranks it has unless somebody says otherwise."""
    min_world_size: int = 2
    args: tuple[Any, ...] = ()
    faults: tuple[Fault, ...] = ()
    tags: tuple[str, ...] = ()


def found_text(result: Result) -> str:
    """What a run came to, in a few words: its verdict and the finding that leads its text."""
    leading: Finding | None = next(iter(result.findings), None)
    return _text(result.verdict, leading.code if leading else None, leading.ranks if leading else ())


def _text(verdict: Verdict, code: Code | None, ranks: Ranks) -> str:
    return ", ".join([verdict.value, *([str(code)] if code else []), *([rank_list(ranks)] if ranks else [])])
