"""Simulates ranks that a test starts by torch's `mp.spawn` and `start_processes`, or by `Process` of multiprocessing.

Only the last step of a start is replaced, so all code of torch and multiprocessing above it is unchanged.
"""

import ast
import inspect
import multiprocessing.connection
import multiprocessing.synchronize
import os
import threading
import tokenize
from collections.abc import Callable
from functools import cache
from multiprocessing import context
from typing import Any

import pytest

from ddpsim.scenarios.test_suites.outside import OutsideProcesses
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.scenarios.test_suites.started_ranks import StartedRank, World, body_of_worker
from ddpsim.simulator.launching.launch import ProjectDefinitions
from ddpsim.simulator.launching.launcher import arguments_with_number, is_worker_of_spawn
from ddpsim.simulator.rank_processes.in_children.sitecustomize import NAME
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_SECONDS_BETWEEN_LOOKS = 0.05


class ProcessesOfTest:
    """The processes that the test which runs now has started as ranks."""

    def __init__(self, ranks: RanksOfTest, replaced: ReplacedAttributes, outside: OutsideProcesses) -> None:
        self._ranks = ranks
        self._outside = outside
        self._starter = os.getpid(), threading.get_ident()
        self._worlds: list[World] = []
        for kind in (context.ForkProcess, context.SpawnProcess, context.ForkServerProcess):
            replaced.set_attribute(kind, "_Popen", staticmethod(self._start_replacement(kind)))
        replaced.replace_attribute(multiprocessing.connection, "wait", self._wait_replacement)
        replaced.replace_attribute(multiprocessing.connection.Connection, "_recv", self._receive_replacement)
        replaced.replace_attribute(multiprocessing.synchronize.Condition, "wait", self._condition_replacement)

    def _is_starter(self) -> bool:
        """Return whether the test itself runs here, not a rank."""
        return self._starter == (os.getpid(), threading.get_ident())

    def _start_replacement(self, kind: Any) -> Callable[[Any], Any]:
        original = vars(kind)["_Popen"].__func__

        def start_process_or_rank(worker: Any) -> Any:
            world = self._world_of(worker)
            if world is None:
                with pytest.MonkeyPatch.context() as patch:
                    if self._ranks.attempt is not None and self._is_starter():
                        starter = self._outside.starter("multiprocessing", str(self._ranks.attempt.item.path))
                        patch.setenv(NAME, starter)
                    return original(worker)
            is_forked = kind is context.ForkProcess
            body, on = body_of_worker(worker, is_forked=is_forked)
            world.on = world.on or on
            for other in world.started:
                other.glances = 0  # multiprocessing polls all processes when another one is started
            world.started.append(StartedRank(world, body, is_forked=is_forked))
            return world.started[-1]

        return start_process_or_rank

    def _world_of(self, worker: Any) -> World | None:
        """Return the world to which a process belongs as the next rank; None if it is no rank."""
        if self._ranks.attempt is None or not self._is_starter():
            return None
        function = worker._args[0] if is_worker_of_spawn(worker) else worker._target
        if last := [world for world in self._worlds[-1:] if not world.has_begun and world.function == function]:
            positions = last[0].positions & arguments_with_number(worker, len(last[0].started))
            if positions:
                last[0].positions = positions
                return last[0]
        positions = arguments_with_number(worker, 0)
        if not positions or not (is_worker_of_spawn(worker) or may_make_group(function, *worker._args)):
            return None
        self._worlds.append(World(self._ranks, function, positions))
        return self._worlds[-1]

    def _wait_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(object_list: Any, timeout: float | None = None) -> Any:
            __tracebackhide__ = True
            waited = list(object_list)
            if not self._is_starter() or not (running := [rank for rank in self._started() if rank.returncode is None]):
                return original(waited, timeout)
            ranks = [rank for rank in running if rank.sentinel in waited]
            if ranks and len(ranks) == len(waited):
                for rank in ranks:
                    rank.world.run()
                if all(rank.returncode is None for rank in ranks):
                    ranks[0].wait()
                return original(waited, timeout)
            self._run_meanwhile()
            ready = original([*waited, *(rank.sentinel for rank in running if rank not in ranks)], timeout)
            self._raise_failures()
            return [each for each in ready if each in waited] or (original(waited, timeout) if ready else [])

        return wait

    def _receive_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(connection: Any, size: int, *reading: Any) -> Any:
            __tracebackhide__ = True
            if self._worlds and self._is_starter():
                multiprocessing.connection.wait([connection])
            return original(connection, size, *reading)

        return receive

    def _condition_replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(condition: Any, timeout: float | None = None) -> Any:
            __tracebackhide__ = True
            if self._worlds and self._is_starter():
                self._run_meanwhile()
                while timeout is None and not original(condition, _SECONDS_BETWEEN_LOOKS):
                    self._raise_failures()
            return timeout is None or original(condition, timeout)

        return wait

    def _started(self) -> list[StartedRank]:
        return [rank for world in self._worlds for rank in world.started]

    def _run_meanwhile(self) -> None:
        for world in self._worlds[-1:]:
            world.run_meanwhile()

    def _raise_failures(self) -> None:
        __tracebackhide__ = True
        for world in self._worlds:
            world.raise_failure()

    def run_left_ranks(self) -> str:
        """Run the ranks for which the test has not waited, as real ones would run on; return a line that says so."""
        __tracebackhide__ = True
        left = [world for world in self._worlds if any(rank.returncode is None for rank in world.started)]
        for world in left:
            world.run()
        self._raise_failures()
        return ", ".join(
            f"the test has not waited for the {len(world.started)} ranks that it started" for world in left
        )

    def close(self) -> None:
        """Release what the ranks of a test hold."""
        worlds, self._worlds = self._worlds, []
        for world in worlds:
            world.close()


@cache
def _definitions_in(file: str) -> ProjectDefinitions:
    with tokenize.open(file) as opened:
        return ProjectDefinitions({file: ast.parse(opened.read())})


def may_make_group(*given: Any) -> bool:
    """Return whether a process's function, or one among its arguments, may make a process group, as far as its file
    shows."""
    return any(_may_make_group(each) for each in given if callable(each))


def _may_make_group(function: Any) -> bool:
    try:
        call = ast.parse(f"Process(target={function.__name__})", mode="eval").body
        return isinstance(call, ast.Call) and _definitions_in(inspect.getfile(function)).may_start_rank(call)
    except (AttributeError, OSError, SyntaxError, TypeError):
        return True
