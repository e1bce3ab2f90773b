"""Runs scenarios of the zoo on real gloo, in a process for each rank, and keeps what torch's recorder has of each.

    python -m tests.records.real_jobs FOLDER SCENARIO...

Writes FOLDER/SCENARIO/rank_N, as `ddpsim diagnose --torchrun` has ranks do it. Ranks are forked from here, where torch
is imported and has no threads yet.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from ddpsim.scenarios import Scenario, load
from ddpsim.scenarios.jobs import in_rank
from ddpsim.scenarios.jobs.watched_job import processor_seconds

QUIET_SECONDS = 3.0
LIMIT_SECONDS = 90.0
_PRELOADED = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo")
"""What programs import that takes seconds."""
_READY = "ready_{}"
"""The file that a rank leaves when it begins."""
_BUSY_SHARE = 0.1
_LOOK_SECONDS = 0.5
_ENV = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def main(folder: Path, names: list[str]) -> None:
    """Run one scenario after another."""
    for module in _PRELOADED:
        importlib.import_module(module)
    for name in names:
        own = folder / name
        own.mkdir(parents=True)
        scenario = load(name)
        ranks = [_forked(scenario, rank, own) for rank in range(scenario.world_size)]
        try:
            _await_files(own, _READY, ranks)
            _await(ranks)
            (own / in_rank.NOW).touch()
            _await_files(own, in_rank.DONE, ranks)
        finally:
            for process in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def _await(ranks: list[int]) -> None:
    """Until nothing moves. Those that have ended are zombies, and take nothing."""
    start = moved = time.monotonic()
    before = 0.0
    while time.monotonic() - moved < QUIET_SECONDS and time.monotonic() - start < LIMIT_SECONDS:
        time.sleep(_LOOK_SECONDS)
        taken = sum(map(processor_seconds, ranks))
        if taken - before > _BUSY_SHARE * _LOOK_SECONDS:
            moved = time.monotonic()
        before = taken


def _await_files(folder: Path, name: str, ranks: list[int]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    done = [folder / name.format(rank) for rank, process in enumerate(ranks) if _is_alive(process)]
    while time.monotonic() < end and not all(path.exists() for path in done):
        time.sleep(0.1)


def _is_alive(process: int) -> bool:
    """False for one that gloo has ended."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _forked(scenario: Scenario, rank: int, folder: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            _rank(scenario, rank, folder)
        finally:
            os._exit(0)
    return process


def _rank(scenario: Scenario, rank: int, folder: Path) -> None:
    size = str(scenario.world_size)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    launched = {in_rank.FOLDER: str(folder), "DDPSIM_RECORDS_LAUNCHER": str(os.getppid())}
    os.environ.update(_ENV | own | launched)
    with (folder / f"output_{rank}").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), scenario.world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=scenario.world_size)
    in_rank.begin()
    (folder / _READY.format(rank)).touch()
    try:
        scenario.program(rank, *scenario.args)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    time.sleep(10 * LIMIT_SECONDS)  # who ends now lets the calls of others fail before they have written


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
