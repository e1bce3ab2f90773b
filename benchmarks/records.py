"""How long `ddpsim diagnose` takes for the dumps of a large job, beside torch's own `torchfrtrace`.

    python -m benchmarks.records [--ranks 1024] [--entries 2000] [--rounds 1] [--torch]

The dumps have the shape of NCCL's: times of their own in each entry, five lines of stack, a group of all ranks and one
of each node of 8. One rank does not come to the last call. The cost is linear in the entries, which the second row
shows: half of them. Times are wall time and processor time of all processes; memory is the largest sum of their
resident sets that was seen, looked at 50 times a second: what they share counts for each.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PER_NODE = 8
LINES = 12
"""So many lines of the program make calls."""

Dump = dict[str, Any]


def written(folder: Path, ranks: int, entries: int) -> None:
    """Write the dumps of a job of so many ranks, of which one leaves early."""
    folder.mkdir()
    stacks = [_stack(line) for line in range(LINES)]
    for rank in range(ranks):
        dump = _dump(rank, ranks, entries, stacks)
        if rank == ranks * 3 // 4:
            del dump["entries"][-1]
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, 2))


def _stack(line: int) -> list[Dump]:
    installed = "/job/site-packages/torch/"
    files = [("all_reduce", installed + "distributed/distributed_c10d.py"), ("wrapper", installed + "logger.py")]
    files += [("backward", "/job/model.py"), ("train", "/job/train.py"), ("<module>", "/job/train.py")]
    return [{"name": name, "filename": path, "line": 20 + line} for name, path in files]


def _dump(rank: int, ranks: int, entries: int, stacks: list[list[Dump]]) -> Dump:
    node = rank // PER_NODE
    members = range(node * PER_NODE, min(node * PER_NODE + PER_NODE, ranks))
    groups = ("0", "default_pg"), (str(node + 1), "node")
    numbers = [0, 0]
    made = []
    for record in range(entries):
        is_last = record == entries - 1
        which = record % 4 == 3 and not is_last
        numbers[which] += 1
        made.append(_entry(record, groups[which], numbers[which], is_open=is_last, rank=rank))
        made[-1]["frames"] = stacks[record % LINES]
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
        str(node + 1): {"name": str(node + 1), "desc": "node", "ranks": str(list(members))},
    }
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "", "pg_status": {}, "entries": made}


def _entry(record: int, group: tuple[str, str], number: int, *, is_open: bool, rank: int) -> Dump:
    size = [[1 + 64 * (record % LINES)]]
    now = 1_795_000_000_000_000_000 + record * 1_000_003 + rank * 77
    return {
        "record_id": record,
        "pg_id": int(group[0] != "0"),
        "process_group": group,
        "thread_name": "python",
        "thread_id": str(140_000_000_000_000 + rank),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce" if record % 3 else "nccl:broadcast",
        "time_created_ns": now,
        "input_sizes": size,
        "input_dtypes": ["Float"],
        "output_sizes": [list(each) for each in size],
        "output_dtypes": ["Float"],
        "state": "started" if is_open else "completed",
        "time_discovered_started_ns": now + 40_000,
        "time_discovered_completed_ns": None if is_open else now + 90_000,
        "retired": not is_open,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def _measured(words: list[str]) -> tuple[float, float, float, str]:
    """Seconds of wall time, of processor time, the most MiB of all its processes together, and what it says."""
    with tempfile.TemporaryFile("w+") as told:
        before, start, most = os.times(), time.perf_counter(), 0.0
        process = subprocess.Popen(words, stdout=told, stderr=subprocess.STDOUT)
        while process.poll() is None:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(0.02)
        wall, after = time.perf_counter() - start, os.times()
        processor = after.children_user - before.children_user + after.children_system - before.children_system
        told.seek(0)
        return wall, processor, most, told.read()


def _family(process: int) -> list[int]:
    """A process and those it started, by Linux."""
    try:
        children = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return []  # it has ended
    return [process, *(each for several in children for child in several for each in _family(int(child)))]


def _resident(process: int) -> float:
    """MiB of memory that a process has now; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--torch", action="store_true", help="run torchfrtrace, too, in turn")
    options = parser.parse_args()
    print(f"{'tool':<14}{'ranks':>6}{'entries':>9}{'wall s':>9}{'cpu s':>9}{'MiB':>8}")
    with tempfile.TemporaryDirectory() as root:
        for entries in (options.entries, options.entries // 2):
            folder = Path(root) / str(entries)
            written(folder, options.ranks, entries)
            tools = {"ddpsim": [sys.executable, "-m", "ddpsim", "diagnose", str(folder)]}
            if options.torch:
                tools["torchfrtrace"] = ["torchfrtrace", str(folder), "-p", "rank_"]
            for _ in range(options.rounds):
                for tool, words in tools.items():
                    wall, processor, memory, told = _measured(words)
                    wanted = f"rank{'s' * (tool != 'ddpsim')} {options.ranks * 3 // 4}"
                    assert tool != "ddpsim" or wanted in told, told[-500:]
                    print(
                        f"{tool:<14}{options.ranks:>6}{entries:>9}{wall:9.1f}{processor:9.1f}{memory:8.0f}", flush=True
                    )


if __name__ == "__main__":
    main()
