"""Swaps the state of native code, such as a random generator, by copying its memory. Its own functions are too slow."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a state, and its marks: fields that differ whenever two states differ."""

    marks: object
    content: Any


def window(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes at `address`. The caller keeps the memory alive."""
    return memoryview(_bytes(size).from_address(address)).cast("B")


@cache
def _bytes(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


class NativeState:
    """A state in native memory that is copied only if it has changed.

    The marks are chosen so that states with equal marks are equal. So a state whose marks are those that `probe`
    returns is already in place. Equal states (each rank drew the same numbers) are kept once. A probe takes 0.1 us; a
    copy of 2.5 KB from uncached memory takes 1.5 us.
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
