"""Spin detection: which threads only look again for what they have looked for in vain, so that loops that poll end.

A loop that polls comes back to the same location, before the same object, with nobody having got on: going round once
more it would see nothing else. So there it is not let look again before somebody gets on. But a thread may also look a
few times and then do something else. So the first time that a thread comes back to a location, it is let go on alone:
if it looks there more than `MOST_LOOKS` times, it is in a loop that polls. If not, all of its looks are steps like
others.

What it did alone is no execution that counts (RedundantRun). What is given up: how often a loop turns that can turn
more than `MOST_LOOKS` times in vain, and whatever a program does only after counting its turns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddpsim.simulator.accesses import Access, Accesses, Mode, Object
from ddpsim.simulator.choices import RedundantRun

MOST_LOOKS = 100
"""Who looks more often than this for one thing from one location, while nobody gets on, is in a loop that polls."""

Location = tuple[str | int, ...]
"""File, function's and own line of every frame on the stack. By lines, as Python compiles the condition of a `while`
twice; all frames, as a function that looks may be called from a loop and from elsewhere."""
_Look = tuple[int, Location, Accesses]
"""Of which thread, from where, and what for."""


class SpinDetection:
    """The looks in vain of one execution, whose observer it can be."""

    def __init__(self, loops: dict[Location, bool]) -> None:
        self._loops = loops
        """By location, whether it is a loop that polls; kept from one execution to the next."""
        self._progress = 0
        self._counts: dict[_Look, tuple[int, int]] = {}
        """How often each look was made in a row, and how much progress there was by then."""
        self._stands: dict[int, _Look] = {}
        self._followed: tuple[_Look, int] | None = None
        """Who goes on alone, and how much progress there was when it began."""
        self.has_learned = False
        """A location has become known: what was run was for that, and the same choices are to be run again."""

    def is_idle(self, number: int) -> bool:
        """True for a thread that would only look in vain once more."""
        look = self._stands.get(number)
        return look is not None and self._count(look) > (1 if self._loops.get(look[1]) else MOST_LOOKS)

    def follow(self, options: Sequence[int]) -> int | None:
        """The thread that goes on alone, if there is one. Raises RedundantRun once it has shown what it does."""
        if self._followed is None and self._stands:
            self._followed = next(((look, self._progress) for look in self._unknown(options)), None)
        if self._followed is None:
            return None
        look, progress = self._followed
        number = look[0]
        own = self._stands.get(number)
        goes_on = number in options and progress == self._progress
        if goes_on and (own is None or self._count(own) <= MOST_LOOKS):
            return number
        # A loop with two looks may have been known to be one by the other look first.
        self._learn(look, is_loop=goes_on and self._count(look) > MOST_LOOKS // 2)
        raise RedundantRun

    def conclude(self) -> None:
        """The execution is over. Raises RedundantRun if a thread went on alone to its end."""
        if self._followed is not None:
            self._learn(self._followed[0], is_loop=False)
            raise RedundantRun

    def _learn(self, look: _Look, *, is_loop: bool) -> None:
        self._loops[look[1]] = is_loop
        self.has_learned = True

    def got_on(self) -> None:
        """Something happened that somebody may look for."""
        self._progress += 1

    def _count(self, look: _Look) -> int:
        progress, count = self._counts.get(look, (0, 0))
        return count if progress == self._progress else 0

    def _unknown(self, options: Sequence[int]) -> list[_Look]:
        """Those that have come back to where they looked before, from locations that are not known."""
        looks = [look for number in options if (look := self._stands.get(number)) is not None]
        return [look for look in looks if look[1] not in self._loops and self._count(look) > 1]

    # --- observing ----------------------------------------------------------------------------------------------------

    def intends(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Note before which look a thread stands."""
        if not looks_again:
            self._stands.pop(rank, None)
            return
        look = rank, _location_here(), accesses
        self._counts[look] = self._progress, self._count(look) + 1
        self._stands[rank] = look

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Note what others may look for; `issued` does it for calls."""
        if access.mode is Mode.WRITE or (access.mode is Mode.CONTRIBUTE and access.object[0] != "call"):
            self.got_on()

    def issued(self, rank: int, name: object, call: object) -> None:
        """Note a call."""
        self.got_on()

    def started(self, rank: int, thread: int) -> None:
        """Note a thread."""
        self.got_on()

    def woke(self, by: int | None, rank: int) -> None:
        """Note who goes on."""
        self.got_on()

    def created(self, rank: int, key: Object) -> None:
        """Of no interest: the key is touched, too."""

    def needs(self, rank: int, key: Object) -> None:
        """Of no interest."""

    def removed(self, key: Object) -> None:
        """Of no interest: the key is touched, too."""

    def waits(self, rank: int, *, is_for_good: bool) -> None:
        """Of no interest."""

    def let_go(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """Of no interest."""

    def completed(self, names: Sequence[object]) -> None:
        """Of no interest: the last of them was issued just now."""

    def learned(self, rank: int, name: object) -> None:
        """Of no interest."""

    def joined(self, rank: int, thread: int) -> None:
        """Of no interest."""

    def cancelled(self, rank: int) -> None:
        """Note that a thread looks for nothing any more."""
        self._stands.pop(rank, None)

    def used(self, kind: str) -> None:
        """Nothing to note."""

    def cut_short(self, rank: int) -> None:
        """Of no interest."""


def _location_here() -> Location:
    location: list[str | int] = []
    frame = sys._getframe(2)
    while frame is not None:
        location += (frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(location)
