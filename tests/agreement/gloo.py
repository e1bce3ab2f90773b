"""Programs on real gloo, many at a time: by the processes of `--transport processes`, without torch's launcher.

Every program gets fresh processes, so what a broken one leaves behind (a dead connection, memory overwritten) ends with
it. Programs that hang only wait, so more of them pay than there are cores.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch._C._distributed_c10d import TCPStore

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.jobs.job_launcher import keep_fork_servers
from ddpsim.scenarios.jobs.rank_report import RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.jobs.supervisor import supervise_rank
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.ranks.interpreter import run_rank_steps
from ddpsim.simulator.programs.program import Program

MOST_RANKS = 64
"""Each is a process that is connected to all others."""
_IN_PROGRESS = 12


class GlooError(Exception):
    """gloo could not be asked: nothing is known about the program."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A program in progress."""

    store: TCPStore
    """Where its processes meet, as torchrun would open it."""
    processes: tuple[BaseProcess, ...]
    reports: Connection

    def result(self) -> tuple[RankReport, ...]:
        """Wait for it. Raises GlooError if the process that knows ended before it said so."""
        try:
            reports: tuple[RankReport, ...] = self.reports.recv()
        except EOFError:
            raise GlooError("the processes of a program ended without a report: run it again") from None
        self.end()
        if late := [report for report in reports if not report.has_started]:
            raise GlooError(f"rank {late[0].rank} did not start: see whether the machine is short of memory")
        return reports

    def end(self) -> None:
        """Wait for its processes, which end once all have read what they need."""
        for process in self.processes:
            process.join()
        self.reports.close()

    def stop(self) -> None:
        """End it, wherever it is."""
        for process in self.processes:
            process.terminate()
        self.end()


def on_gloo(
    programs: Iterable[tuple[Program, float]], run: Callable[..., Any] = run_rank_steps
) -> Iterator[tuple[RankReport, ...]]:
    """What became of the ranks of each program, in order; with it, the seconds in which nothing moves in a hang."""
    running: deque[_Running] = deque()
    coming = iter(programs)
    with keep_fork_servers():
        try:
            while True:
                while len(running) < _IN_PROGRESS and (given := next(coming, None)):
                    running.append(_started(*given, run))
                if not running:
                    return
                reports = running[0].result()
                running.popleft()
                yield reports
        finally:
            for each in running:
                each.stop()


def _started(program: Program, timeout_seconds: float, run: Callable[..., Any]) -> _Running:
    scenario = Scenario("program", "", _kept, args=(run, program), world_size=program.world_size)
    job = ScenarioJob.from_scenario(scenario, Engine.TORCH, timeout_seconds)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    start = multiprocessing.get_context("forkserver").Process
    processes = tuple(
        start(target=_be, args=(job, rank, program.world_size, store.port, theirs))
        for rank in range(program.world_size)
    )
    for process in processes:
        process.start()
    theirs.close()
    return _Running(store, processes, ours)


def _kept(rank: int, run: Callable[..., Any], program: Program) -> Any:
    """What it returns lives as long as the process.

    It holds the works: gloo never sends a message whose work was dropped, and who waits for it would hang.
    """
    outputs = run(rank, program)
    atexit.register(lambda: outputs)
    return outputs


def _be(job: ScenarioJob, rank: int, world_size: int, port: int, line: Connection) -> None:
    """Be the process that looks after a rank; that of rank 0 knows what became of all."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
    }
    reports = supervise_rank(job)
    if rank == 0:
        line.send(reports)
