"""Who watches the steps of a run, to tell which of them depend on each other. Only explorations have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.calls import Call

CallName = tuple[int, int]
"""Rank and handle of a call."""


class Observer(Protocol):
    """Told what ranks are about to do, have done, and have learned of each other.

    A rank here is a task, by its number: the rank's own for its program.
    """

    def intends(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """A rank stands at a choice point; this is what it touches when it goes on.

        It `looks_again` for something that it has just looked for in vain.
        """

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """A rank touched an object. A receive from any source took from `source`, one of the `candidates`."""

    def created(self, rank: int, key: Object) -> None:
        """A rank stored a key that was not there; it has touched it already."""

    def needs(self, rank: int, key: Object) -> None:
        """A rank goes on now that a key is there, which it would have waited for; it touches it next."""

    def removed(self, key: Object) -> None:
        """A key is there no more; who took it away has touched it already."""

    def waits(self, rank: int, *, is_for_good: bool) -> None:
        """A rank begins to wait for keys; it has touched those that are missing already.

        Once let go it goes on `for good` even if one is removed before it runs; else it looks again.
        """

    def let_go(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """A rank made the last of the keys that another one waits for."""

    def issued(self, rank: int, name: CallName, call: Call) -> None:
        """A rank issued a call."""

    def completed(self, names: Sequence[CallName]) -> None:
        """Calls met."""

    def learned(self, rank: int, name: CallName) -> None:
        """A rank has seen that a call of its own is complete."""

    def started(self, rank: int, thread: int) -> None:
        """A rank started a thread, which is one more to be told of."""

    def joined(self, rank: int, thread: int) -> None:
        """A rank has seen that a thread of its own has ended."""

    def cancelled(self, rank: int) -> None:
        """A rank's thread, which stands at a choice point or waits, is to be unwound instead of going on."""

    def used(self, kind: str) -> None:
        """A rank used something of a kind: an operation of the store, a class of `threading`, faults."""

    def cut_short(self, rank: int) -> None:
        """The run ends here, in a step of this rank, whatever others could do."""

    def woke(self, by: int | None, rank: int) -> None:
        """A rank that waited goes on, because of another one; of all of them if `by` is None (time passed)."""
