"""Swaps the state of a random generator by copying its native memory, or else through its slower public functions."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class GeneratorStateCopy:
    """A copy of a random generator's state."""

    marks: object
    """Some fields of the state, chosen so that two states that differ have different marks; None without a copy."""
    content: Any
    gauss: Any = None
    """The next value of `random.gauss` or of numpy's normal distribution: these make two values and keep one."""


def memory_view(address: int, size: int) -> memoryview:
    """Return a writable view of the `size` bytes of memory at `address`. The caller keeps the memory alive."""
    return memoryview(_byte_array_type(size).from_address(address)).cast("B")


@cache
def _byte_array_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


class NativeState:
    """A random generator's state in native memory, copied only if it has changed.

    Its marks are some fields, chosen so that states with equal marks are equal. So if `probe` returns a state's marks,
    that state is current already. Equal states (each rank drew the same numbers) are kept once. A probe takes 0.1 us; a
    copy of 2.5 KB from uncached memory takes 1.5 us.
    """

    def __init__(self, region: memoryview, probe: Callable[[], object]) -> None:
        self._region = region
        self.probe = probe
        self._in_place = self._latest = GeneratorStateCopy(probe(), region.tobytes())

    def save_state(self) -> GeneratorStateCopy:
        """Return a copy of the generator's current state."""
        marks = self.probe()
        for known in (self._in_place, self._latest):
            if marks == known.marks:
                return known
        self._latest = GeneratorStateCopy(marks, self._region.tobytes())
        return self._latest

    def load_state(self, state: GeneratorStateCopy) -> None:
        """Give the generator a saved state."""
        self._in_place = state
        self._region[:] = state.content

    def swap_state(self, state: GeneratorStateCopy) -> GeneratorStateCopy:
        """Give the generator a saved state, and return its previous one."""
        outgoing = self.save_state()
        self.load_state(state)
        return outgoing


class GeneratorByPublicFunctions:
    """Swaps a random generator's state through its public functions, if the layout of its memory is unknown."""

    probe = object

    def __init__(
        self, get: Callable[[], Any], put: Callable[[Any], object], seeded: Callable[[int], Any], start_seed: int
    ) -> None:
        """`seeded` is a function that returns the state of a generator that was just seeded."""
        self._get, self._put, self._seeded = get, put, seeded
        self.start = self.seeded_state(start_seed)

    def seeded_state(self, seed: int) -> GeneratorStateCopy:
        """Return the state of a generator that was just seeded."""
        return GeneratorStateCopy(None, self._seeded(seed))

    def save_state(self) -> GeneratorStateCopy:
        """Return the generator's current state."""
        return GeneratorStateCopy(None, self._get())

    def swap_state(self, state: GeneratorStateCopy) -> GeneratorStateCopy:
        """Give the generator a saved state, and return its previous one."""
        outgoing = self.save_state()
        self._put(state.content)
        return outgoing
