"""Real gloo inside one process: every rank a thread, with torch.distributed's state for itself.

A world is set up once and runs many programs, because destroying a gloo group takes tens of milliseconds. It is the
yardstick for the table of cases, not a tool: it cannot see a deadlock, only run into its time-out.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _set_thread_isolation_mode
from torch.distributed import distributed_c10d

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program returned on one rank, or what it raised there."""

    value: object = None
    error: BaseException | None = None


class StateOfThread(threading.local):
    """What torch keeps once per process in `distributed_c10d._world`, here once per thread."""

    def __init__(self) -> None:
        self.default_pg = None
        self.pg_map = {}
        self.pg_names = {}
        self.pg_group_ranks = {}
        self.pg_backend_config = {}
        self.group_count = 0
        self.tags_to_pg = {}
        self.pg_to_tag = {}
        self.pg_coalesce_state = {}
        self.pg_flight_recorder_hooks = {}  # since torch 2.15
        self.comms = []


@contextmanager
def state_per_thread() -> Iterator[None]:
    """Give every thread torch.distributed for itself; afterwards the process is as it was."""
    state_of_process = distributed_c10d._world
    distributed_c10d._world = StateOfThread()
    _set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _set_thread_isolation_mode(False)
        distributed_c10d._world = state_of_process


class GlooWorld:
    """Rank threads with a default group on gloo; to be used inside `state_per_thread`."""

    def __init__(self, world_size: int, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.is_broken = False
        self._timeout_seconds = timeout_seconds
        self._store = dist.HashStore()
        self._meeting = threading.Barrier(world_size)
        self._group_counts = [0] * world_size
        self._programs: list[queue.SimpleQueue[Callable[[int], object] | None]] = [
            queue.SimpleQueue() for _ in range(world_size)
        ]
        self._outcomes: list[queue.SimpleQueue[Outcome]] = [queue.SimpleQueue() for _ in range(world_size)]
        self._threads = [threading.Thread(target=self._serve, args=(rank,), daemon=True) for rank in range(world_size)]
        for thread in self._threads:
            thread.start()

    def run(self, program: Callable[[int], object]) -> list[Outcome]:
        """Run `program(rank)` on every rank. A world where one raised may hold unmatched calls: close it then."""
        for programs in self._programs:
            programs.put(program)
        # A rank may run into gloo's time-out, and then wait for another one at the meeting.
        outcomes = [each.get(timeout=3 * self._timeout_seconds) for each in self._outcomes]
        self.is_broken = any(outcome.error is not None for outcome in outcomes)
        return outcomes

    def close(self) -> None:
        """End the ranks' threads and their groups."""
        for programs in self._programs:
            programs.put(None)
        for thread in self._threads:
            thread.join(timeout=3 * self._timeout_seconds)
            assert not thread.is_alive()

    def _serve(self, rank: int) -> None:
        # One thread for all ranks' backward would wait for itself.
        with torch.autograd.set_multithreading_enabled(False):
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=rank,
                world_size=len(self._programs),
                timeout=timedelta(seconds=self._timeout_seconds),
            )
            while (program := self._programs[rank].get()) is not None:
                outcome = _outcome(program, rank)
                self._group_counts[rank] = distributed_c10d._world.group_count
                self._meet()
                # Groups get their names from it. Since torch 2.15 it also counts those that only their members make.
                distributed_c10d._world.group_count = max(self._group_counts)
                _destroy_subgroups()
                self._outcomes[rank].put(outcome)
            self._meet()
            dist.destroy_process_group()

    def _meet(self) -> None:
        # A group that goes away early takes with it what its peers have not read yet.
        self._meeting.wait(timeout=2 * self._timeout_seconds)


def _outcome(program: Callable[[int], object], rank: int) -> Outcome:
    try:
        return Outcome(value=program(rank))
    except Exception as error:
        return Outcome(error=error)


def _destroy_subgroups() -> None:
    for group in list(distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
