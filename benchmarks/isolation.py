"""What it costs to give each rank a process of its own, against ranks that are threads, and against torchrun.

    python -m benchmarks.isolation [--rounds 7] [--large]

Medians of alternating rounds, in milliseconds: an execution whose ranks do nothing, a barrier of 4 ranks, an
all_reduce, and the uneven join of benchmarks/uneven_join.py; then the same join under torchrun, once. `--large` runs 64
and 256 ranks that reduce once, with the memory that one of them has for itself.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.uneven_join import train
from ddpsim import Verdict, simulate

RANKS = 4
REPEATS = 100

Program = Callable[[int], object]


def nothing(rank: int) -> None:
    """Begin and end."""


def barriers(rank: int) -> None:
    """Calls without data."""
    for _ in range(REPEATS):
        dist.barrier()


def reductions(rank: int) -> None:
    """Calls with a little data."""
    tensor = torch.ones(8)
    for _ in range(REPEATS):
        dist.all_reduce(tensor)


def seconds(program: Program, isolation: str, world_size: int = RANKS) -> float:
    """Of one execution."""
    start = time.perf_counter()
    result = simulate(program, world_size, isolation=isolation)
    assert result.verdict is Verdict.PASS, str(result)
    return time.perf_counter() - start


def medians(program: Program, rounds: int) -> tuple[float, float]:
    """Of ranks that are threads, and that are processes, in alternating rounds after one that is not counted."""
    taken: dict[str, list[float]] = {"thread": [], "process": []}
    for number in range(rounds + 1):
        for isolation, times in taken.items():
            times.append(seconds(program, isolation))
            if not number:
                times.clear()
    return statistics.median(taken["thread"]), statistics.median(taken["process"])


def private_bytes(rank: int) -> int:
    """What a rank has for itself once it has reduced."""
    dist.all_reduce(torch.ones(8))
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def torchrun_seconds() -> float:
    """The join under torch's launcher, all of it."""
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        "-m",
        "benchmarks.isolation",
    ]
    start = time.perf_counter()
    subprocess.run([sys.executable, *words, "--as-a-rank"], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--as-a-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_a_rank:
        dist.init_process_group("gloo")
        train(dist.get_rank())
        dist.destroy_process_group()
        return
    torch.set_num_threads(1)
    print(f"{'4 ranks':24} {'threads':>10} {'processes':>10} {'ratio':>7}")
    empty = medians(nothing, options.rounds)
    show("start and end", *empty)
    for name, program in (("a barrier, per rank", barriers), ("an all_reduce, per rank", reductions)):
        per_call = [
            (taken - own) / REPEATS / RANKS for taken, own in zip(medians(program, options.rounds), empty, strict=True)
        ]
        show(name, *per_call)
    show("an uneven join", *medians(train, options.rounds))
    print(f"{'the join under torchrun':24} {1e3 * torchrun_seconds():>21.0f}")
    for world_size in (64, 256) if options.large else ():
        start = time.perf_counter()
        result = simulate(private_bytes, world_size, isolation="process")
        taken = time.perf_counter() - start
        print(f"{world_size} ranks: {taken:.1f} s, {max(result.returns) / 2**20:.0f} MiB private to a rank")


def show(name: str, threads: float, processes: float) -> None:
    """A row: milliseconds, and how many times as long."""
    print(f"{name:24} {1e3 * threads:>10.3f} {1e3 * processes:>10.3f} {processes / threads:>7.1f}")


if __name__ == "__main__":
    main()
