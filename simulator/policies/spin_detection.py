"""Spin detection: finds threads whose next poll would fail again, so that explorations of polling loops end.

A polling loop returns to the same location and polls the same object. If no other thread made progress in between, the
poll fails again, so the thread may not poll before another thread makes progress. But a thread may also poll a few
times and then do something else. So when a thread first returns to a location, it runs alone: if it polls there more
than `MOST_POLLS` times, it is in a polling loop. If not, its polls are ordinary steps.

The run in which it ran alone does not count (RedundantRun). Not explored: code that depends on how often a loop of more
than `MOST_POLLS` failed polls repeats.
"""

import sys
from collections.abc import Sequence
from typing import Any

from ddpsim.simulator.accesses import Access, Accesses, AccessMode
from ddpsim.simulator.choices import RedundantRun
from ddpsim.simulator.policies.observer import Observer

MOST_POLLS = 100
"""A thread that polls an object from one location more often than this, without progress, is in a polling loop."""

Location = tuple[str | int, ...]
"""File, function's first line and current line of each frame on the stack. Lines, because Python compiles a `while`'s
condition twice; all frames, because a function that polls may be called inside a loop and elsewhere."""
_Poll = tuple[int, Location, Accesses]
"""A poll: the thread, its location on the stack, and the objects that it reads."""


class SpinDetection(Observer):
    """Counts the failed polls of one execution, and finds polling loops; it can also be the execution's observer."""

    def __init__(self, loops: dict[Location, bool]) -> None:
        self._loops = loops
        """By location, whether it is a polling loop; kept for all executions."""
        self._progress = 0
        self._counts: dict[_Poll, tuple[int, int]] = {}
        """By poll, the progress counter at that time, and how often the poll was repeated without progress."""
        self._next_polls: dict[int, _Poll] = {}
        """By thread, its next poll; threads whose next step is not a poll are left out."""
        self._running_alone: tuple[_Poll, int] | None = None
        """The poll of the thread that runs alone, and the progress counter when the thread began to run alone."""
        self.has_learned = False
        """True if this run learned whether some location is a polling loop, so that its choices must be run again."""

    def would_poll_in_vain(self, number: int) -> bool:
        """Return whether the thread's next poll would fail again."""
        look = self._next_polls.get(number)
        return look is not None and self._failed_polls(look) > (1 if self._loops.get(look[1]) else MOST_POLLS)

    def thread_to_run_alone(self, options: Sequence[int]) -> int | None:
        """Return the thread that must run alone; None if there is none. Raises RedundantRun once it is known whether
        that thread's location is a polling loop."""
        if self._running_alone is None and self._next_polls:
            self._running_alone = next(((look, self._progress) for look in self._unclassified_polls(options)), None)
        if self._running_alone is None:
            return None
        look, progress = self._running_alone
        number = look[0]
        own = self._next_polls.get(number)
        is_undisturbed = number in options and progress == self._progress
        if is_undisturbed and (own is None or self._failed_polls(own) <= MOST_POLLS):
            return number
        # A loop with two polls may have been classified by the other poll first.
        self._classify_location(look, is_loop=is_undisturbed and self._failed_polls(look) > MOST_POLLS // 2)
        raise RedundantRun

    def conclude_execution(self) -> None:
        """Finish the counts at the end of an execution. Raises RedundantRun if a thread ran alone to its end."""
        if self._running_alone is not None:
            self._classify_location(self._running_alone[0], is_loop=False)
            raise RedundantRun

    def _classify_location(self, look: _Poll, *, is_loop: bool) -> None:
        self._loops[look[1]] = is_loop
        self.has_learned = True

    def note_progress(self, *_: Any, **__: Any) -> None:
        """Count progress: something has happened for which a thread may poll."""
        self._progress += 1

    issued_call = started_thread = woke_task = note_progress

    def _failed_polls(self, look: _Poll) -> int:
        progress, count = self._counts.get(look, (0, 0))
        return count if progress == self._progress else 0

    def _unclassified_polls(self, options: Sequence[int]) -> list[_Poll]:
        """Return the repeated polls at locations of which it is unknown whether they are polling loops."""
        looks = [look for number in options if (look := self._next_polls.get(number)) is not None]
        return [look for look in looks if look[1] not in self._loops and self._failed_polls(look) > 1]

    def about_to_access(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Record the next poll of a thread, if the thread's next step is a poll."""
        if not looks_again:
            self._next_polls.pop(rank, None)
            return
        look = rank, _current_location(), accesses
        self._counts[look] = self._progress, self._failed_polls(look) + 1
        self._next_polls[rank] = look

    def accessed(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Record an access for which other threads may poll; `issued_call` does so for calls."""
        if access.mode is AccessMode.WRITE or (access.mode is AccessMode.CONTRIBUTE and access.object[0] != "call"):
            self.note_progress()

    def cancelled_thread(self, rank: int) -> None:
        """Record that a thread was cancelled, so that it polls no more."""
        self._next_polls.pop(rank, None)


def _current_location() -> Location:
    location: list[str | int] = []
    frame = sys._getframe(2)
    while frame is not None:
        location += (frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(location)
