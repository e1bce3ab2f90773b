"""The choice points of the current run, each with the options to try and the sleep set (options that need no try)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpsim.simulator.accesses import Access, AccessMode, are_dependent
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice


class ExploredStep(NamedTuple):
    """A step that earlier runs have explored; it is tried again only after a step on which it depends."""

    accesses: tuple[Access, ...]
    sources: frozenset[int] = frozenset()
    """For a receive from any source: the ranks whose messages it has taken."""
    has_more: bool = False
    """For a receive: True if there are messages that no run has received here yet."""


Sleep = Mapping[int, ExploredStep]
"""The sleep set (steps that need no try): by rank, its explored step. A set is never changed once a node has it."""


def must_be_tried(sleep: Sleep, rank: int) -> bool:
    """Return whether a rank has to be tried: it is not in the sleep set, or has more than its explored step to try."""
    return rank not in sleep or sleep[rank].has_more


def sleep_after_access(sleep: Sleep, rank: int, access: Access) -> Sleep:
    """Return the sleep set (steps that need no try) after a rank's access: steps that depend on it leave the set."""
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
    """The sleep set (steps that need no try) at this choice point, including the options that were tried."""
    todo: list[int]
    """The options to try, in the order in which they were found; they stay in the list when they were tried."""
    is_compared: bool = True
    """True if each run must offer the same options at this choice point; a run that does not shows nondeterminism."""
    tried: int = 0
    """How many of the options in `todo` were tried."""
    accesses: dict[Access, None] = field(default_factory=dict)
    """The accesses of the chosen rank's step."""
    sources: set[int] = field(default_factory=set)
    """The sources of the messages that the chosen receive took, in this run and earlier runs."""

    @property
    def chosen_option(self) -> int:
        """The option that the current run takes."""
        return self.todo[self.tried]

    def advance_to_next_option(self) -> bool:
        """Put the explored option into the sleep set (steps that need no try); choose the next, or return False."""
        if self.tried + 1 == len(self.todo):
            return False
        if self.offer.point.kind is ChoiceKind.RANK:
            sleeper = ExploredStep(tuple(self.accesses), frozenset(self.sources))
            self.sleep = {**self.sleep, self.chosen_option: sleeper}
            self.accesses, self.sources = {}, set()
        self.tried += 1
        return True

    def add_one_rank_of(self, initials: Sequence[int]) -> None:
        """Add one of these ranks to the options to try, unless one is there or its step was explored elsewhere."""
        if any(rank in self.todo for rank in initials):
            return
        able = [rank for rank in initials if rank in self.options]
        if any(not must_be_tried(self.sleep, rank) for rank in able):
            return
        self.todo += able[:1] or [
            rank for rank in self.options if rank not in self.todo and must_be_tried(self.sleep, rank)
        ]

    def add_another_rank(self) -> None:
        """Add another rank to the options to try, if some rank is not in the sleep set (ranks that need no try)."""
        if len(self.todo) == 1:
            awake = [rank for rank in self.options if rank not in self.todo and must_be_tried(self.sleep, rank)]
            self.todo += awake[:1]

    def without_others(self) -> "SharedNode":
        """Return the node as a part has it that lies below its chosen option."""
        return SharedNode(self.offer, self.options, self.sleep, [self.chosen_option], self.is_compared)

    def take_over(self, shared: "SharedNode") -> None:
        """Add what the part of another process found out about this choice point."""
        self.accesses.update(shared.accesses)
        self.sources |= shared.sources
        for initials in shared.wanted:
            self.add_another_rank() if initials is None else self.add_one_rank_of(initials)


@dataclass(slots=True)
class SharedNode(ChoiceNode):
    """A choice point before those of a part: the part takes one option, and only notes which others it asks for."""

    wanted: list[Sequence[int] | None] = field(default_factory=list)
    """The ranks of which one is to be tried; None for any other rank."""

    def advance_to_next_option(self) -> bool:
        """Return False: the other options are in other parts."""
        return False

    def add_one_rank_of(self, initials: Sequence[int]) -> None:
        """Note that one of these ranks is to be tried."""
        self.wanted.append(initials)

    def add_another_rank(self) -> None:
        """Note that another rank is to be tried."""
        self.wanted.append(None)
