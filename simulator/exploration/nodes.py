"""The path to the run under way: its choices, what is left to try at each, and what need not be tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.simulator.accesses import Access, Mode, depends
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.nondeterminism import Offer


class Sleeper(NamedTuple):
    """A step that was explored, and need not be taken as long as nothing it depends on has happened."""

    accesses: tuple[Access, ...]
    sources: frozenset[int] = frozenset()
    """For a receive from any source: whose messages it has taken."""
    has_more: bool = False
    """For a receive: there are messages that it has not taken."""


Sleep = Mapping[int, Sleeper]
"""Who sleeps, by rank. Never changed once a node has it."""


def lets_run(sleep: Sleep, rank: int) -> bool:
    """True if a rank is awake, or has something else to do than what was explored."""
    return rank not in sleep or sleep[rank].has_more


def disturbed(sleep: Sleep, rank: int, access: Access) -> Sleep:
    """Who still sleeps after what a rank did: those whose steps do not depend on it."""
    left = {}
    for number, sleeper in sleep.items():
        if number != rank and any(depends(own, access) for own in sleeper.accesses):
            continue
        is_more = access.mode is Mode.SEND and any(
            Access(access.object, mode) in sleeper.accesses for mode in (Mode.RECEIVE, Mode.POST)
        )
        left[number] = sleeper._replace(has_more=True) if is_more else sleeper
    return left


@dataclass(slots=True)
class Node:
    """A choice on the path."""

    offer: Offer
    options: Sequence[int]
    """Those of the offer that are worth a try."""
    sleep: Sleep
    """Who sleeps here; those that were tried, too."""
    todo: list[int]
    """What is to be tried, in the order in which it was found; what was tried stays in it."""
    is_compared: bool = True
    """A program that does the same every time offers the same here."""
    tried: int = 0
    """How many of them."""
    accesses: dict[Access, None] = field(default_factory=dict)
    """What the chosen rank's step touches."""
    sources: set[int] = field(default_factory=set)
    """Whose message it took, in this run and others."""

    @property
    def chosen(self) -> int:
        """What is being tried."""
        return self.todo[self.tried]

    def advance(self) -> bool:
        """Close what was chosen, which has been explored, and go on to the next; False if nothing is left."""
        if self.tried + 1 == len(self.todo):
            return False
        if self.offer.point.kind is ChoiceKind.RANK:
            sleeper = Sleeper(tuple(self.accesses), frozenset(self.sources))
            self.sleep = {**self.sleep, self.chosen: sleeper}
            self.accesses, self.sources = {}, set()
        self.tried += 1
        return True

    def try_one_of(self, initials: Sequence[int]) -> None:
        """Let one of these ranks be tried, unless one of them is already, or its step was explored elsewhere."""
        if any(rank in self.todo for rank in initials):
            return
        able = [rank for rank in initials if rank in self.options]
        if any(not lets_run(self.sleep, rank) for rank in able):
            return
        self.todo += able[:1] or [rank for rank in self.options if rank not in self.todo and lets_run(self.sleep, rank)]

    def try_another(self) -> None:
        """Let somebody else be tried, if anybody is awake."""
        if len(self.todo) == 1:
            awake = [rank for rank in self.options if rank not in self.todo and lets_run(self.sleep, rank)]
            self.todo += awake[:1]
