"""Interface that receives the steps of a run, to find which steps depend on each other. Only explorations use it."""

from collections.abc import Sequence

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.calls import Call

CallName = tuple[int, int]
"""A call, named by its rank and its handle."""


class Observer:
    """Interface that receives what ranks are about to do, have done, and have learned of each other.

    `rank` is a task's number: the rank itself for its program, and a higher number for a thread that it started. A
    method that a subclass does not define does nothing.
    """

    def about_to_access(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """A rank is at a choice point; its next step uses the objects in `accesses`. `looks_again` is true if the step
        repeats a check that has just failed."""

    def accessed(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """A rank used a shared object. A receive from any source took a message of `source`, one of `candidates`."""

    def created_key(self, rank: int, key: Object) -> None:
        """A rank stored a key that did not exist. `accessed` was called before."""

    def needed_key(self, rank: int, key: Object) -> None:
        """A rank continues because a store key exists; without it, it would have waited. It accesses the key next."""

    def removed_key(self, key: Object) -> None:
        """A store key was removed. `accessed` was called before for the rank that removed the key."""

    def began_to_wait(self, rank: int, *, is_for_good: bool) -> None:
        """A rank begins to wait for store keys. `accessed` was called before for the missing keys.

        If `is_for_good`, the rank continues after `released_rank` even if a key is removed before it runs; if not, it
        checks the keys again.
        """

    def released_rank(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """A rank created the last of the store keys that another rank waits for."""

    def issued_call(self, rank: int, name: CallName, call: Call) -> None:
        """A rank issued a call."""

    def completed_calls(self, names: Sequence[CallName]) -> None:
        """Calls of several ranks were matched with each other."""

    def saw_completion(self, rank: int, name: CallName) -> None:
        """A rank has seen that its own call is complete."""

    def started_thread(self, rank: int, thread: int) -> None:
        """A rank started a thread, whose steps are reported too."""

    def joined_thread(self, rank: int, thread: int) -> None:
        """A rank has seen that a thread that it started has ended."""

    def cancelled_thread(self, rank: int) -> None:
        """A thread of a rank, at a choice point or in a wait, will end early instead of continuing."""

    def used_feature(self, kind: str) -> None:
        """A rank used a feature: an operation of the store, a class of `threading`, or injected faults."""

    def run_cut_short(self, rank: int) -> None:
        """The run ends in a step of this rank, although other ranks may be able to run."""

    def woke_task(self, by: int | None, rank: int) -> None:
        """A waiting rank continues because of rank `by`; None: virtual time passed, which depends on all ranks."""
