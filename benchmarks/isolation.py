"""What it costs to give each rank a process of its own, against ranks that are threads, and against torchrun.

    python -m benchmarks.isolation [--rounds 7] [--large] [--only-beside]

Medians of alternating rounds, in milliseconds: an execution whose ranks do nothing, a barrier of 4 ranks, an
all_reduce, and the uneven join of benchmarks/uneven_join.py; then the same join under torchrun, once. Then a model that
takes longer to compute than to communicate, with ranks one at a time and beside each other, on two cores. `--large`
runs 64 and 256 ranks that reduce once, with the memory that one of them has for itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.uneven_join import train
from ddpsim import Verdict, simulate

RANKS = 4
REPEATS = 100
HEAVY_STEPS = 10

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


def heavy(rank: int) -> float:
    """Train what takes its time."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
    torch.manual_seed(rank)
    for _ in range(HEAVY_STEPS):
        model.zero_grad()
        model(torch.randn(512, 512)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    return float(sum(parameter.detach().sum() for parameter in model.parameters()))


def beside(world_size: int, rounds: int) -> tuple[float, float]:
    """Medians for the heavy model: ranks one at a time, and beside each other. The runs are the same."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    seen = set()
    for _ in range(rounds):
        for one_at_a_time, times in taken.items():
            start = time.perf_counter()
            result = simulate(heavy, world_size, isolation="process", one_at_a_time=one_at_a_time)
            times.append(time.perf_counter() - start)
            seen.add((result.trace.digest(), result.returns))
    assert len(seen) == 1, "not the same"
    return statistics.median(taken[True]), statistics.median(taken[False])


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
    parser.add_argument("--only-beside", action="store_true")
    parser.add_argument("--as-a-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_a_rank:
        dist.init_process_group("gloo")
        train(dist.get_rank())
        dist.destroy_process_group()
        return
    torch.set_num_threads(1)
    if not options.only_beside:
        show_isolations(options.rounds)
    show_beside(options.rounds)
    for world_size in (64, 256) if options.large else ():
        start = time.perf_counter()
        result = simulate(private_bytes, world_size, isolation="process")
        taken = time.perf_counter() - start
        print(f"{world_size} ranks: {taken:.1f} s, {max(result.returns) / 2**20:.0f} MiB private to a rank")


def show_isolations(rounds: int) -> None:
    """Ranks that are threads beside ranks that are processes."""
    print(f"{'4 ranks':24} {'threads':>10} {'processes':>10} {'ratio':>7}")
    empty = medians(nothing, rounds)
    show("start and end", *empty)
    for name, program in (("a barrier, per rank", barriers), ("an all_reduce, per rank", reductions)):
        per_call = [(taken - own) / REPEATS / RANKS for taken, own in zip(medians(program, rounds), empty, strict=True)]
        show(name, *per_call)
    show("an uneven join", *medians(train, rounds))
    print(f"{'the join under torchrun':24} {1e3 * torchrun_seconds():>21.0f}")


def show_beside(rounds: int) -> None:
    """Ranks one at a time, and beside each other."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    importlib.import_module("torch._dynamo")  # which each rank would import for itself
    print(f"{'a heavy model':24} {'one':>10} {'beside':>10} {'times':>7}")
    for world_size in (2, 4):
        one, both = beside(world_size, rounds)
        print(f"{world_size:>2} ranks on 2 cores       {1e3 * one:>10.0f} {1e3 * both:>10.0f} {one / both:>7.2f}")


def show(name: str, threads: float, processes: float) -> None:
    """A row: milliseconds, and how many times as long."""
    print(f"{name:24} {1e3 * threads:>10.3f} {1e3 * processes:>10.3f} {processes / threads:>7.1f}")


if __name__ == "__main__":
    main()
