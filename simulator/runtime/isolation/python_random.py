"""The generator behind the functions of the `random` module.

`random.getstate` and `setstate` take 11 us together, more than a context switch. The generator's C struct
(Modules/_randommodule.c, `RandomObject`: the object head, `int index`, `uint32_t state[624]`, the same since Python
3.2) is swapped as it is instead (`NativeState`). Whether the struct lies where we believe is checked once for each
generator; where it does not, the public functions do the work.

Each rank starts as if it had called `random.seed(0)`: a program that wants another stream on each rank seeds by rank,
as it does in real processes. Ranks that do not draw then have one state between them, and nothing is copied. Where
ranks start unlike (`seeds.py`), each has called it with a seed of its own.
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
"""`index` moves with each draw; once around, and with each seeding, the first words are others."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The generator's state."""

    marks: object
    gauss: float | None
    """What `random.gauss` keeps for its next call."""

    content: Any


def python_random() -> Generator[RandomState]:
    """Return the cheapest way to swap the module's generator that is right for this interpreter."""
    generator = random._inst
    return RandomByCopy(generator) if is_layout_known(generator) else RandomByState(generator)


@cache
def is_layout_known(generator: random.Random) -> bool:
    """Whether the struct in memory is what `getstate` says."""
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
    """The same through the generator's public functions."""

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
