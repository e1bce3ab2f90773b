"""Swapping what a process owns at every hand-over of the baton.

Isolated by nature, because torch and Python keep it per thread and every rank is a new thread: grad mode, inference
mode, autocast, the default device, saved-tensor hooks, the device-mesh stack, CUDA's current device and streams,
context variables (with them decimal contexts and numpy's errstate). A rank starts with the defaults, whatever the host
had set.

Shared by all ranks, on purpose or because it would cost too much: imported modules and their globals (a module-level
counter of the user's counts all ranks), the working directory, file descriptors, signal handlers, logging, locale,
torch's global module and optimizer hooks, unfinished RPC and symmetric-memory state, XPU and MTIA seeds set before
those devices are initialised, and `lru_cache`s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from simulator.runtime.isolation.environment import Environment
from simulator.runtime.isolation.interpreter import Interpreter
from simulator.runtime.isolation.kind import Kind
from simulator.runtime.isolation.modes import Modes
from simulator.runtime.isolation.numpy_random import numpy_random
from simulator.runtime.isolation.python_random import python_random
from simulator.runtime.isolation.torch_generators import TorchGenerators
from simulator.runtime.isolation.warning_filters import WarningFilters
from simulator.runtime.isolation.world import RankWorld, World

HOST = -1
"""Where the states of the host process stand in a list of states by rank: behind the last rank."""


class Isolation:
    """What a process owns, each rank owns.

    A rank's state of each kind is made when the rank first runs, and the states are dropped by `uninstall`.
    """

    __slots__ = ("_holder", "_restore", "_rows", "_world", "_world_size")

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._world = World(world_size)
        self._holder: int | None = None
        self._rows: tuple[_Row, ...] = ()
        self._restore = ExitStack()

    def install(self) -> None:
        """Remember the host process's state and prepare for ranks. To be undone on the same thread."""
        assert not self._rows, "installed twice"
        kinds: tuple[Kind[Any], ...] = (
            self._world,
            TorchGenerators(),
            python_random(),
            numpy_random(),
            Environment(self._world_size),
            WarningFilters(),
            Interpreter(),
            Modes(),
        )
        try:
            for kind in kinds:
                host = kind.save()
                self._restore.callback(kind.uninstall)
                self._restore.callback(_put_back, kind, host)
                kind.install()
        except BaseException:
            self._restore.close()
            raise
        self._holder = None
        self._rows = tuple((kind.save, kind.load, kind.initial, [None] * (self._world_size + 1)) for kind in kinds)

    def switch(self, outgoing: int | None, incoming: int | None) -> None:
        """Put away the state of `outgoing` and put that of `incoming` in place; None is the host."""
        assert outgoing == self._holder or not self._rows, f"{outgoing} gives away what {self._holder} has"
        leaving = HOST if outgoing is None else outgoing
        entering = HOST if incoming is None else incoming
        for save, load, initial, states in self._rows:
            states[leaving] = save()
            state = states[entering]
            if state is None:
                assert incoming is not None, "the host enters, but no rank ever left it"
                state = initial(incoming)
            load(state)
        self._holder = incoming

    def uninstall(self) -> None:
        """Put the state that the host had at `install` in place, whoever's is there now. May be called twice."""
        self._rows = ()
        self._holder = None
        self._restore.close()

    def world_of(self, rank: int) -> RankWorld:
        """Return the rank's c10d world, where its process groups are registered."""
        return self._world.of(rank)


_Row = tuple[Callable[[], Any], Callable[[Any], None], Callable[[int], Any], list[Any]]
"""A kind's save, load and initial, bound once because a hand-over is short, and its states by rank, the host's last."""


def _put_back(kind: Kind[Any], host: object) -> None:
    kind.save()  # a load always follows a save
    kind.load(host)
