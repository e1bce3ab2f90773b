"""Swaps the generator of the `random` module's functions.

`random.getstate` and `setstate` take 11 us together, more than a context switch. Instead, the generator's C struct
(Modules/_randommodule.c, `RandomObject`: the object head, `int index`, `uint32_t state[624]`, the same since Python
3.2) is copied (`NativeState`). The layout is checked once for each generator; if it differs, the public functions are
used.

Each rank starts as after `random.seed(0)`. A program that wants a different stream on each rank seeds by rank, as in
real processes. Ranks that do not draw share one state, and nothing is copied. If ranks start with different seeds, each
starts as after `random.seed` with its `seed_of_rank`.
"""

import random
from array import array
from functools import cache, lru_cache
from typing import Any

from ddpsim.simulator.runtime.isolation.native_memory import (
    GeneratorByPublicFunctions,
    GeneratorStateCopy,
    NativeState,
    memory_view,
)

START_SEED = 0
WORDS = 624
STRUCT_BYTES = 4 * (1 + WORDS)
MARKS = slice(0, 36)
"""Fields that differ if states differ. `index` changes with each draw, the first words with each seeding and wrap."""


_FIRST_UNLIKE_SEED = 2_137_046
"""Chosen so that ranks 0 and 1 differ at once with each generator: the first number is below 0.3 on rank 0 and above
0.9 on rank 1. Among the first one to sixteen numbers, the two never have equally many above one half. So the ranks take
different branches at `if random() < 0.5`, and drop different layers. Ranks 2 and 3 begin on either side of one half."""


def seed_of_rank(rank: int) -> int:
    """Return the seed of `random`, numpy and torch on a rank, if ranks start with different seeds."""
    return _FIRST_UNLIKE_SEED + rank


def python_generator() -> "RandomByCopy | GeneratorByPublicFunctions":
    """Return the fastest swapper of the `random` module's generator that is correct for this Python version."""
    generator = random._inst
    if is_layout_known(generator):
        return RandomByCopy(generator)
    return GeneratorByPublicFunctions(
        generator.getstate, generator.setstate, lambda seed: random.Random(seed).getstate(), START_SEED
    )


@cache
def is_layout_known(generator: random.Random) -> bool:
    """True if the generator's struct in memory equals what `random.getstate` returns."""
    if type(generator) is not random.Random or type(generator).__basicsize__ < object.__basicsize__ + STRUCT_BYTES:
        return False
    *words, index = generator.getstate()[1]
    return _struct_memory(generator).tobytes() == array("I", (index, *words)).tobytes()


def _struct_memory(generator: random.Random) -> memoryview:
    return memory_view(id(generator) + object.__basicsize__, STRUCT_BYTES)


class RandomByCopy:
    """Swaps the generator's struct, and the normal variate that `random.gauss` keeps for its next call."""

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        region = _struct_memory(generator)
        self.probe = region[MARKS].tobytes
        self._struct = NativeState(region, self.probe)
        self.start = _seeded_state(START_SEED)

    def seeded_state(self, seed: int) -> GeneratorStateCopy:
        """Return the state of a generator that was just seeded."""
        return _seeded_state(seed)

    def save_state(self) -> GeneratorStateCopy:
        """Return a copy of the current state of `random`."""
        struct = self._struct.save_state()
        return GeneratorStateCopy(struct.marks, struct, self._generator.gauss_next)

    def swap_state(self, state: GeneratorStateCopy) -> GeneratorStateCopy:
        """Restore a saved state of `random`, and return the previous one."""
        outgoing = self.save_state()
        self._struct.load_state(state.content)
        self._generator.gauss_next = state.gauss
        return outgoing


@lru_cache(maxsize=16)
def _seeded_state(seed: int) -> GeneratorStateCopy:
    start = random.Random(seed)  # must outlive the copying
    content = _struct_memory(start).tobytes()
    return GeneratorStateCopy(content[MARKS], GeneratorStateCopy(content[MARKS], content))
