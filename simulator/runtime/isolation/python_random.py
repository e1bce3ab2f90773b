"""Swaps the generator of the `random` module's functions.

`random.getstate` and `setstate` take 11 us together, more than a context switch. Instead, the generator's C struct
(Modules/_randommodule.c, `RandomObject`: the object head, `int index`, `uint32_t state[624]`, the same since Python
3.2) is copied (`NativeState`). The layout is checked once for each generator; if it differs, the public functions are
used.

Each rank starts as after `random.seed(0)`. A program that wants a different stream on each rank seeds by rank, as in
real processes. Ranks that do not draw share one state, and nothing is copied. If ranks start with different seeds
(`seeds.py`), each starts as after `random.seed` with its own.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from functools import cache
from typing import Any

from ddpsim.simulator.runtime.isolation.native_memory import Copy, NativeState, window
from ddpsim.simulator.runtime.isolation.random_generator import Generator

START_SEED = 0
WORDS = 624
STRUCT_BYTES = 4 * (1 + WORDS)
MARKS = slice(0, 36)
"""The marks. `index` changes with each draw; the first words change with each seeding, and when `index` wraps."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The generator's state."""

    marks: object
    gauss: float | None
    """The normal variate that `random.gauss` keeps for its next call."""

    content: Any


def python_random() -> Generator[RandomState]:
    """Return the cheapest way to swap the module's generator that is right for this interpreter."""
    generator = random._inst
    return RandomByCopy(generator) if is_layout_known(generator) else RandomByState(generator)


@cache
def is_layout_known(generator: random.Random) -> bool:
    """True if the struct in memory equals what `getstate` returns."""
    if type(generator) is not random.Random or type(generator).__basicsize__ < object.__basicsize__ + STRUCT_BYTES:
        return False
    *words, index = generator.getstate()[1]
    return _struct_of(generator).tobytes() == array("I", (index, *words)).tobytes()


def _struct_of(generator: random.Random) -> memoryview:
    return window(id(generator) + object.__basicsize__, STRUCT_BYTES)


class RandomByCopy:
    """Swaps the generator's struct, and the normal variate that `random.gauss` keeps for its next call."""

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        region = _struct_of(generator)
        self.probe = region[MARKS].tobytes
        self._struct = NativeState(region, self.probe)
        self.start = _start()

    def started(self, seed: int) -> RandomState:
        """Return the state of a generator that was just seeded."""
        return _started(seed)

    def save(self) -> RandomState:
        """Return the state in place."""
        return _state(self._struct.save(), self._generator.gauss_next)

    def exchange(self, state: RandomState) -> RandomState:
        """Put a state in place and return the one that was there."""
        outgoing = self.save()
        self._struct.load(state.content)
        self._generator.gauss_next = state.gauss
        return outgoing


@cache
def _start() -> RandomState:
    return _started(START_SEED)


def _started(seed: int) -> RandomState:
    start = random.Random(seed)  # must outlive the copying
    content = _struct_of(start).tobytes()
    return _state(Copy(content[MARKS], content), None)


def _state(struct: Copy, gauss: float | None) -> RandomState:
    return RandomState(struct.marks, gauss, struct)


class RandomByState:
    """Swaps the generator's state through its public functions, if its memory layout is unknown."""

    probe = object

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.start = self.started(START_SEED)

    def started(self, seed: int) -> RandomState:
        """Return the state of a generator that was just seeded."""
        return RandomState(None, None, random.Random(seed).getstate())

    def save(self) -> RandomState:
        """Return the state in place."""
        return RandomState(None, None, self._generator.getstate())

    def exchange(self, state: RandomState) -> RandomState:
        """Put a state in place and return the one that was there."""
        outgoing = self.save()
        self._generator.setstate(state.content)
        return outgoing
