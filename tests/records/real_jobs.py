"""Runs scenarios of the zoo on real gloo, in a process for each rank, and lets each leave what torch's recorder has.

    python -m tests.records.real_jobs FOLDER SCENARIO...

Writes FOLDER/SCENARIO/rank_N. A rank that is done, or has raised, stays until all have written.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

from ddpsim.scenarios import Scenario, load

SECONDS = 4.0
"""Whoever stands so long, stands for good."""
TRIES = 15
"""So often is waited for the first call."""


def main(folder: Path, names: list[str]) -> None:
    """Run one scenario after another; ranks are forked from here, where torch is imported and has no threads yet."""
    for name in names:
        own = folder / name
        own.mkdir(parents=True)
        scenario = load(name)
        ranks = [_forked(scenario, rank, own) for rank in range(scenario.world_size)]
        for process in ranks:
            os.waitpid(process, 0)


def _forked(scenario: Scenario, rank: int, folder: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            _rank(scenario, rank, folder)
        finally:
            os._exit(0)
    return process


def _rank(scenario: Scenario, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), scenario.world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=scenario.world_size)
    threading.Thread(target=_leave, args=(rank, folder), daemon=True).start()
    try:
        scenario.program(rank, *scenario.args)
    except Exception:
        traceback.print_exc()
    time.sleep(100 * SECONDS)


def _leave(rank: int, folder: Path) -> None:
    """Write once nothing has moved for a while."""
    before, dump, tries = b"", _dump_fr_trace(), 0
    while dump != before or (tries < TRIES and not pickle.loads(dump)["entries"]):
        time.sleep(SECONDS)
        before, dump, tries = dump, _dump_fr_trace(), tries + 1
    (folder / f"rank_{rank}").write_bytes(dump)
    time.sleep(2 * SECONDS)  # who ends now lets the calls of others fail before they have written
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
