"""State that native code keeps in memory, swapped by copying where its own interface is too slow for a switch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Copy:
    """A state; and its marks, those of its fields that tell it from others."""

    marks: object
    content: Any


def window(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes at `address`. Keeping the memory alive is the caller's business."""
    return memoryview(_bytes(size).from_address(address)).cast("B")


@cache
def _bytes(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


class NativeState:
    """A state in native memory, of which only what was touched is saved, and only what differs is loaded.

    The part of it that is its marks is so chosen that states which agree there are the same. So it need not be
    exchanged for a state that has the marks that `probe` returns: that is in place already. States that came out equal
    (each rank drew the same) are kept once. A probe takes 0.1 us, a copy of 2.5 KB from memory in no cache 1.5 us.
    """

    __slots__ = ("_in_place", "_latest", "_region", "probe")

    def __init__(self, region: memoryview, probe: Callable[[], object]) -> None:
        self._region = region
        self.probe = probe
        self._in_place = self._latest = Copy(probe(), region.tobytes())

    def save(self) -> Copy:
        """Return the state in place."""
        marks = self.probe()
        for known in (self._in_place, self._latest):
            if marks == known.marks:
                return known
        self._latest = Copy(marks, self._region.tobytes())
        return self._latest

    def load(self, state: Copy) -> None:
        """Put a state in place."""
        self._in_place = state
        self._region[:] = state.content

    def exchange(self, state: Copy) -> Copy:
        """Put a state in place and return the one that was there."""
        outgoing = self.save()
        self.load(state)
        return outgoing
