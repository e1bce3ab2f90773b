"""Swaps the generator of numpy.random's functions.

Getting and setting its state takes 65 us, many times as long as a switch. So its memory is copied (`NativeState`):
the bit generator's struct, whose address numpy publishes (`BitGenerator.ctypes.state_address`;
numpy/random/src/mt19937/mt19937.h: `uint32_t key[624]; int pos`), and the normal variate that the legacy functions keep
for their next call, which lies in the RandomState object (numpy/random/mtrand.pyx, `_aug_state`;
distributions/legacy-distributions.h: `bitgen_t *bit_generator; int has_gauss; double gauss`). Its address is found and
checked once per process. If that fails, the public functions are used.

Each rank starts as after `numpy.random.seed(0)`, for the reason given in `python_random.py`.
"""

import sys
from functools import cache, lru_cache
from struct import Struct, calcsize
from typing import Any

import numpy

from ddpsim.simulator.runtime.isolation.native_memory import GeneratorStateCopy, NativeState, memory_view

START_SEED = 0
KEY_WORDS = 624
STRUCT_BYTES = 4 * (KEY_WORDS + 1)
MARKS = slice(STRUCT_BYTES - 36, STRUCT_BYTES)
"""Fields that differ if states differ. `pos` changes with each draw, the last words with each seeding or wrap."""

POINTER_BYTES = calcsize("P")
GAUSS = Struct("i4xd")
"""The layout of numpy's kept normal variate: `int has_gauss`, padding, `double gauss`."""


def numpy_generator() -> "NumpyByCopy | NumpyByPublicFunctions":
    """Return the fastest swapper of numpy's global random generator that is correct for this numpy version."""
    random_state = numpy.random.mtrand._rand
    if type(random_state._bit_generator) is not numpy.random.MT19937:
        return NumpyByPublicFunctions(random_state)
    gauss_address = checked_gauss_address(random_state)
    return NumpyByPublicFunctions(random_state) if gauss_address is None else NumpyByCopy(random_state, gauss_address)


@cache
def checked_gauss_address(random_state: Any) -> int | None:
    """Return the address of numpy's `has_gauss` field; None if the memory is not laid out as expected."""
    address = find_gauss_address(random_state)
    return address if address is not None and is_numpy_layout_known(random_state, address) else None


def find_gauss_address(random_state: Any) -> int | None:
    """Return the address of numpy's `has_gauss` field: right after the only pointer into the object itself."""
    start, size = id(random_state), type(random_state).__basicsize__
    words = memory_view(start, size - size % POINTER_BYTES).cast("P")
    inward = [at for at, word in enumerate(words) if start < word < start + size]
    address = start + (inward[0] + 1) * POINTER_BYTES if len(inward) == 1 else None
    return address if address is not None and address + GAUSS.size <= start + size else None


def is_numpy_layout_known(random_state: Any, gauss_address: int) -> bool:
    """True if both structs in memory equal what `get_state` returns, and a variate written there is drawn next."""
    state = random_state.get_state(legacy=False)
    struct = _struct_memory(random_state._bit_generator)
    key, position = state["state"]["key"], state["state"]["pos"]
    gauss = memory_view(gauss_address, GAUSS.size)
    before = gauss.tobytes()
    has_gauss, variate = GAUSS.unpack(before)
    if (
        struct.tobytes() != key.tobytes() + position.to_bytes(4, sys.byteorder)
        or has_gauss != state["has_gauss"]
        or variate != state["gauss"]
    ):
        return False
    gauss[:] = GAUSS.pack(1, 0.25)
    drawn = random_state.standard_normal()
    gauss[:] = before
    if drawn != 0.25:
        random_state.set_state(state)  # undo the draw
    return bool(drawn == 0.25)


class NumpyByPublicFunctions:
    """Swaps the global generator's state through numpy's public functions, with any bit generator.

    `numpy.random.set_bit_generator` may have replaced the Mersenne twister, so the bit generator object is part of the
    state. Ranks start with a Mersenne twister, as a process does.
    """

    probe = object
    probe_gauss = bytes

    def __init__(self, random_state: Any) -> None:
        self._random_state = random_state
        current = random_state._bit_generator
        self.mersenne: Any = current if type(current) is numpy.random.MT19937 else numpy.random.MT19937(0)
        self.start = self.seeded_state(START_SEED)

    def seeded_state(self, seed: int) -> GeneratorStateCopy:
        """Return the state of a generator that was just seeded."""
        return GeneratorStateCopy(None, (self.mersenne, _seeded_values(seed), None))

    def save_state(self) -> GeneratorStateCopy:
        """Return numpy's bit generator, its state, and that of the Mersenne twister that it may have replaced."""
        current = self._random_state._bit_generator
        replaced = None if current is self.mersenne else self.mersenne.state
        return GeneratorStateCopy(None, (current, self._random_state.get_state(legacy=False), replaced))

    def load_state(self, state: GeneratorStateCopy) -> None:
        """Make a saved bit generator numpy's current one, with its state."""
        bit_generator, values, replaced = state.content
        if replaced is not None:
            self.mersenne.state = replaced
        self.draw_from(bit_generator)
        self._random_state.set_state(values)

    def swap_state(self, state: GeneratorStateCopy) -> GeneratorStateCopy:
        """Restore a saved bit generator and state, and return the previous ones."""
        outgoing = self.save_state()
        self.load_state(state)
        return outgoing

    def draw_from(self, bit_generator: Any) -> None:
        """Make the functions of `numpy.random` draw from a bit generator."""
        if self._random_state._bit_generator is not bit_generator:
            numpy.random.mtrand.set_bit_generator(bit_generator)


class NumpyByCopy:
    """Swaps numpy's random state by copying memory; by numpy's functions for a rank that replaced the generator."""

    def __init__(self, random_state: Any, gauss_address: int) -> None:
        self._random_state = random_state
        self.mersenne = random_state._bit_generator
        region = _struct_memory(self.mersenne)
        self.probe = region[MARKS].tobytes
        self._struct = NativeState(region, self.probe)
        self._gauss = memory_view(gauss_address, GAUSS.size)
        self._by_state = NumpyByPublicFunctions(random_state)
        self.probe_gauss = self._gauss.tobytes
        self.start = self.seeded_state(START_SEED)

    def seeded_state(self, seed: int) -> GeneratorStateCopy:
        """Return the state of a generator that was just seeded."""
        content = _seeded_struct(seed)
        return GeneratorStateCopy(content[MARKS], GeneratorStateCopy(content[MARKS], content), GAUSS.pack(0, 0.0))

    def save_state(self) -> GeneratorStateCopy:
        """Return the two structs of numpy's random state; by numpy's functions if the twister was replaced."""
        if self._random_state._bit_generator is not self.mersenne:
            return self._by_state.save_state()
        struct = self._struct.save_state()
        return GeneratorStateCopy(struct.marks, struct, self._gauss.tobytes())

    def swap_state(self, state: GeneratorStateCopy) -> GeneratorStateCopy:
        """Restore a saved random state of numpy, and return the previous one."""
        outgoing = self.save_state()
        if state.marks is None:
            self._by_state.load_state(state)
            return outgoing
        self._by_state.draw_from(self.mersenne)
        self._struct.save_state()
        self._struct.load_state(state.content)
        self._gauss[:] = state.gauss
        return outgoing


def _struct_memory(mersenne: Any) -> memoryview:
    return memory_view(mersenne.ctypes.state_address, STRUCT_BYTES)


@lru_cache(maxsize=16)
def _seeded_struct(seed: int) -> bytes:
    start: Any = numpy.random.RandomState(seed)  # must outlive the copying
    return _struct_memory(start._bit_generator).tobytes()


@lru_cache(maxsize=16)
def _seeded_values(seed: int) -> Any:
    return numpy.random.RandomState(seed).get_state(legacy=False)
