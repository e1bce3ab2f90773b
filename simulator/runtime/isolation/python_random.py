"""The generator behind the functions of the `random` module.

`random.getstate` and `setstate` take 11 us together, half of a hand-over. The generator's C struct
(Modules/_randommodule.c, `RandomObject`: the object head, `int index`, `uint32_t state[624]`, the same since Python
3.2) is copied as it is instead, which takes 0.3 us and needs no guess at whether anybody drew. Whether the struct lies
where we believe is checked at each install; where it does not, the public functions do the work.

A rank starts as if it had called `random.seed(rank)`.
"""

from __future__ import annotations

import random
from array import array
from typing import Any

from simulator.runtime.isolation.kind import Kind
from simulator.runtime.isolation.native_memory import window

WORDS = 624
STRUCT_BYTES = 4 * (1 + WORDS)


def python_random() -> Kind[Any]:
    """Return the cheapest way to swap the module's generator that is right for this interpreter."""
    generator = random._inst
    return RandomByCopy(generator) if is_layout_known(generator) else RandomByState(generator)


def is_layout_known(generator: random.Random) -> bool:
    """Whether the struct in memory is what `getstate` says."""
    if type(generator) is not random.Random or type(generator).__basicsize__ < object.__basicsize__ + STRUCT_BYTES:
        return False
    struct = window(id(generator) + object.__basicsize__, STRUCT_BYTES)
    *words, index = generator.getstate()[1]
    return struct.tobytes() == array("I", (index, *words)).tobytes()


class RandomByCopy:
    """Copies the generator's struct, and the normal variate that `random.gauss` keeps for its next call."""

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        self._struct = window(id(generator) + object.__basicsize__, STRUCT_BYTES)

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> tuple[bytes, float | None]:
        """Return the state after `random.seed(rank)`."""
        self._generator.seed(rank)
        return self.save()

    def save(self) -> tuple[bytes, float | None]:
        """Return the state in place."""
        return (self._struct.tobytes(), self._generator.gauss_next)

    def load(self, state: tuple[bytes, float | None]) -> None:
        """Put a state in place."""
        self._struct[:], self._generator.gauss_next = state

    def uninstall(self) -> None:
        """Nothing to undo."""


class RandomByState:
    """The same through the generator's public functions."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> Any:
        """Return the state after `random.seed(rank)`."""
        self._generator.seed(rank)
        return self._generator.getstate()

    def save(self) -> Any:
        """Return the state in place."""
        return self._generator.getstate()

    def load(self, state: Any) -> None:
        """Put a state in place."""
        self._generator.setstate(state)

    def uninstall(self) -> None:
        """Nothing to undo."""
