"""The choice points of the current run, each with the options to try and the sleep set (options that need no try)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.simulator.accesses import Access, AccessMode, are_dependent
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice


class ExploredStep(NamedTuple):
    """A step that was explored already; it is taken again only after a step that it depends on."""

    accesses: tuple[Access, ...]
    sources: frozenset[int] = frozenset()
    """For a receive from any source: the ranks whose messages it has taken."""
    has_more: bool = False
    """For a receive: True if there are messages that the receive has not taken yet."""


Sleep = Mapping[int, ExploredStep]
"""The sleep set: by rank, the rank's explored step. A set is never changed after a node has received it."""


def may_run(sleep: Sleep, rank: int) -> bool:
    """Return whether a rank has to be tried: it does not sleep, or its next step can differ from the explored step."""
    return rank not in sleep or sleep[rank].has_more


def sleep_after_access(sleep: Sleep, rank: int, access: Access) -> Sleep:
    """Return the sleep set after an access of a rank, without the steps that depend on the access."""
    left = {}
    for number, sleeper in sleep.items():
        if number != rank and any(are_dependent(own, access) for own in sleeper.accesses):
            continue
        takes = [Access(access.object, mode) for mode in (AccessMode.RECEIVE, AccessMode.POST)]
        is_more = access.mode is AccessMode.SEND and any(take in sleeper.accesses for take in takes)
        left[number] = sleeper._replace(has_more=True) if is_more else sleeper
    return left


@dataclass(slots=True)
class ChoiceNode:
    """One choice point on the path of runs."""

    offer: OfferedChoice
    options: Sequence[int]
    """The options that are worth a try."""
    sleep: Sleep
    """The sleep set at this choice point, including the options that were tried."""
    todo: list[int]
    """The options to try, in the order in which they were found; options that were tried remain in the list."""
    is_compared: bool = True
    """True if each run must offer the same options at this choice point; a run that does not shows nondeterminism."""
    tried: int = 0
    """How many of `todo` were tried."""
    accesses: dict[Access, None] = field(default_factory=dict)
    """The accesses of the chosen rank's step."""
    sources: set[int] = field(default_factory=set)
    """The sources of the messages that the chosen receive took, in this run and earlier runs."""

    @property
    def chosen_option(self) -> int:
        """The option that the current run takes."""
        return self.todo[self.tried]

    def advance_to_next_option(self) -> bool:
        """Put the explored option into the sleep set and choose the next option; return False if none is left."""
        if self.tried + 1 == len(self.todo):
            return False
        if self.offer.point.kind is ChoiceKind.RANK:
            sleeper = ExploredStep(tuple(self.accesses), frozenset(self.sources))
            self.sleep = {**self.sleep, self.chosen_option: sleeper}
            self.accesses, self.sources = {}, set()
        self.tried += 1
        return True

    def add_one_of(self, initials: Sequence[int]) -> None:
        """Add one of these ranks to `todo`, unless one is there already, or its step was explored elsewhere."""
        if any(rank in self.todo for rank in initials):
            return
        able = [rank for rank in initials if rank in self.options]
        if any(not may_run(self.sleep, rank) for rank in able):
            return
        self.todo += able[:1] or [rank for rank in self.options if rank not in self.todo and may_run(self.sleep, rank)]

    def add_another_rank(self) -> None:
        """Add another rank to `todo`, if some rank is not in the sleep set."""
        if len(self.todo) == 1:
            awake = [rank for rank in self.options if rank not in self.todo and may_run(self.sleep, rank)]
            self.todo += awake[:1]
