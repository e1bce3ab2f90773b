"""Swaps the state of a random generator by copying its native memory, or else through its slower public functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of a state."""

    marks: object
    """Fields that differ whenever two states differ; None if the copy was made by public functions."""
    content: Any
    gauss: Any = None
    """The normal variate that the generators of `random` and numpy keep for their next call."""


def memory_view(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes at `address`. The caller keeps the memory alive."""
    return memoryview(_byte_array_type(size).from_address(address)).cast("B")


@cache
def _byte_array_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


class NativeState:
    """A state in native memory that is copied only if it has changed.

    The marks are chosen so that states with equal marks are equal. So a state whose marks are those that `probe`
    returns is already in place. Equal states (each rank drew the same numbers) are kept once. A probe takes 0.1 us; a
    copy of 2.5 KB from uncached memory takes 1.5 us.
    """

    def __init__(self, region: memoryview, probe: Callable[[], object]) -> None:
        self._region = region
        self.probe = probe
        self._in_place = self._latest = StateCopy(probe(), region.tobytes())

    def save_state(self) -> StateCopy:
        """Return the state in place."""
        marks = self.probe()
        for known in (self._in_place, self._latest):
            if marks == known.marks:
                return known
        self._latest = StateCopy(marks, self._region.tobytes())
        return self._latest

    def load_state(self, state: StateCopy) -> None:
        """Put a state in place."""
        self._in_place = state
        self._region[:] = state.content

    def swap_state(self, state: StateCopy) -> StateCopy:
        """Put a state in place and return the one that was there."""
        outgoing = self.save_state()
        self.load_state(state)
        return outgoing


class GeneratorByPublicFunctions:
    """Swaps a generator's state through its public functions, if its memory layout is unknown."""

    probe = object

    def __init__(
        self, get: Callable[[], Any], put: Callable[[Any], object], seeded: Callable[[int], Any], start_seed: int
    ) -> None:
        """`seeded` returns the state of a generator that was just seeded."""
        self._get, self._put, self._seeded = get, put, seeded
        self.start = self.seeded_state(start_seed)

    def seeded_state(self, seed: int) -> StateCopy:
        """Return the state of a generator that was just seeded."""
        return StateCopy(None, self._seeded(seed))

    def save_state(self) -> StateCopy:
        """Return the state in place."""
        return StateCopy(None, self._get())

    def swap_state(self, state: StateCopy) -> StateCopy:
        """Put a state in place and return the one that was there."""
        outgoing = self.save_state()
        self._put(state.content)
        return outgoing
