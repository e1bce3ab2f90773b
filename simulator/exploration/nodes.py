"""The path to the run under way: its choices, what is left to try at each, and what need not be tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpsim.simulator.accesses import Access, Accesses, Mode, conflict
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.nondeterminism import Offer


@dataclass(slots=True)
class Sleeper:
    """A step that was explored, and need not be taken as long as nothing it depends on has happened."""

    accesses: Accesses
    sources: frozenset[int] = frozenset()
    """For a receive from any source: whose messages it has taken."""
    has_more: bool = False
    """For a receive: there are messages that it has not taken."""

    def copy(self) -> Sleeper:
        """Another one like it."""
        return Sleeper(self.accesses, self.sources, self.has_more)


class Sleep:
    """Who sleeps, by rank."""

    def __init__(self, sleepers: dict[int, Sleeper] | None = None) -> None:
        self._sleepers = sleepers or {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._sleepers

    def copy(self) -> Sleep:
        """The same, to be changed apart from it."""
        return Sleep({rank: sleeper.copy() for rank, sleeper in self._sleepers.items()})

    def put(self, rank: int, sleeper: Sleeper) -> None:
        """Let a step sleep."""
        self._sleepers[rank] = sleeper

    def take(self, rank: int) -> frozenset[int]:
        """Wake a rank for its step; return the sources that it need not take from."""
        sleeper = self._sleepers.pop(rank, None)
        return frozenset() if sleeper is None else sleeper.sources

    def lets_run(self, rank: int) -> bool:
        """True if the rank is awake, or has something else to do than what was explored."""
        return rank not in self._sleepers or self._sleepers[rank].has_more

    def disturb(self, rank: int, access: Access) -> None:
        """Wake those whose steps depend on what `rank` does."""
        for sleeping, sleeper in list(self._sleepers.items()):
            if sleeping != rank and any(conflict(own, access) for own in sleeper.accesses):
                del self._sleepers[sleeping]
            elif access.mode is Mode.SEND and Access(access.object, Mode.RECEIVE) in sleeper.accesses:
                sleeper.has_more = True


@dataclass(slots=True)
class Node:
    """A choice on the path."""

    offer: Offer
    options: tuple[int, ...]
    """Those of the offer that are worth a try."""
    sleep: Sleep
    todo: list[int]
    """What is to be tried, in the order in which it was found; what was tried stays in it."""
    tried: int = 0
    """How many of them."""
    accesses: list[Access] = field(default_factory=list)
    """What the chosen rank's step touches."""
    sources: set[int] = field(default_factory=set)
    """Whose message it took, in this run and others."""

    @property
    def chosen(self) -> int:
        """What is being tried."""
        return self.todo[self.tried]

    def advance(self) -> bool:
        """Close what was chosen, which has been explored, and go on to the next; False if nothing is left."""
        if self.offer.point.kind is ChoiceKind.RANK:
            self.sleep.put(self.chosen, Sleeper(tuple(self.accesses), frozenset(self.sources)))
            self.sources = set()
        self.tried += 1
        return self.tried < len(self.todo)

    def try_one_of(self, leading: tuple[int, ...]) -> None:
        """Let one of these ranks be tried, unless one of them is already, or its step was explored elsewhere."""
        if any(rank in self.todo for rank in leading):
            return
        able = [rank for rank in leading if rank in self.options]
        awake = [rank for rank in able if rank not in self.sleep]
        if awake or not able:
            self.todo.extend(rank for rank in awake[:1] or self.options if rank not in self.todo)
