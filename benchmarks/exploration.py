"""Executions per second of explorations on one core, what bounds them, and how often PCT finds planted bugs.

    python -m benchmarks.exploration [--seconds 5] [--bugs] [--jobs 2]

The programs, on 4 ranks: `collectives` (four all_reduce and a barrier, no training) and `training` (the uneven join of
benchmarks/uneven_join.py: torch's own DDP, 2 to 5 batches a rank), each explored by random schedules. Rates are per
second of CPU time of this process, so that a busy machine does not matter; wall time stands beside it.

`floor` is what no simulator can do without: four threads that start, hand a baton round as often as the execution does,
and end; for the training, with the same training on one-rank groups besides.

Then comes which part of the code the time goes to. `--bugs` runs planted bugs of depth 1 to 4, in 1,000 executions of
PCT and of a random walk each.

`--jobs N` explores on N processes: `ratio` is the wall time of one process by theirs. `at most` is what their CPU time
leaves of it on N idle cores. Measured with N = 2 while some ten others ran on two cores: `random` 1.04, at most 1.61;
`dfs` 2.00, at most 1.89. Of the executions that workers run, up to 7 % are in vain where the budget ends (dfs), and
none where all are covered.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks.uneven_join import floor_seconds, train
from ddpsim import Budget, Pct, Progress, explore, simulate

RANKS = 4
GOALS = {"collectives": 500, "training": 80}
"""Executions per second that the project asks for."""

Program = Callable[[int], object]


def collectives(rank: int) -> None:
    """Five collectives and nothing else."""
    tensor = torch.ones(4)
    for _ in range(4):
        dist.all_reduce(tensor)
    dist.barrier()


# --- rates ------------------------------------------------------------------------------------------------------------


def rate(program: Program, seconds: float) -> tuple[float, float, int]:
    """Executions per second of CPU time and of wall time, and the context switches of one."""
    simulate(program, RANKS, policy="random")  # imports, caches
    cpu, wall = time.process_time(), time.perf_counter()
    done = explore(program, RANKS, policy="random", budget=Budget(executions=100_000, seconds=seconds))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert done.first_failure is None, str(done)
    return done.executions / cpu, done.executions / wall, context_switches(program)


def context_switches(program: Program) -> int:
    """How often the baton changes hands in one execution under a random schedule."""
    events = simulate(program, RANKS, policy="random").trace.events
    return sum(one.rank != other.rank for one, other in pairwise(events))


def threads_seconds(context_switches: int) -> float:
    """CPU seconds of four threads that hand a baton round so often."""
    batons = [threading.Semaphore(0) for _ in range(RANKS)]
    rounds = -(-context_switches // RANKS)

    def body(rank: int) -> None:
        for _ in range(rounds):
            batons[rank].acquire()
            batons[(rank + 1) % RANKS].release()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(RANKS)]
    start = time.process_time()
    for thread in threads:
        thread.start()
    batons[0].release()
    for thread in threads:
        thread.join()
    return time.process_time() - start


def print_rates(seconds: float) -> None:
    """One line a program."""
    programs: dict[str, Program] = {"collectives": collectives, "training": train}
    print(f"torch {torch.__version__}, {RANKS} ranks, random schedules, {seconds:g} s each")
    print(f"{'program':<12} {'/ CPU s':>8} {'goal':>6} {'/ wall s':>9} {'CPU ms':>8} {'floor ms':>9} {'switches':>11}")
    for name, program in programs.items():
        per_cpu, per_wall, switches = rate(program, seconds)
        floor = min(threads_seconds(switches) for _ in range(20))
        if program is train:
            floor += min(floor_seconds(RANKS) for _ in range(10))
        cells = f"{per_cpu:>8.0f} {GOALS[name]:>6} {per_wall:>9.0f} {1e3 / per_cpu:>8.1f} {floor * 1e3:>9.1f}"
        print(f"{name:<12} {cells} {switches:>11}", flush=True)


def print_shares(executions: int = 100) -> None:
    """Which part of the code the time of each program goes to, by a profile of all threads in CPU time."""
    for program in (collectives, train):
        shares = shares_by_part(profiled(program, executions))
        total = sum(shares.values())
        largest = sorted(shares.items(), key=lambda item: -item[1])[:8]
        print(
            f"{program.__name__:<12} " + ", ".join(f"{part} {share / total:.0%}" for part, share in largest), flush=True
        )


def profiled(program: Program, executions: int) -> pstats.Stats:
    """A profile of an exploration with the threads of its ranks. It counts functions in C as their callers' part."""
    profiles: list[cProfile.Profile] = []
    run = threading.Thread.run

    def run_profiled(thread: threading.Thread) -> None:
        with _profile(profiles):
            run(thread)

    threading.Thread.run = run_profiled
    try:
        with _profile(profiles):
            explore(program, RANKS, policy="random", budget=Budget(executions=executions))
    finally:
        threading.Thread.run = run
    stats = pstats.Stats(profiles[0])
    for each in profiles[1:]:
        stats.add(each)
    return stats


def _profile(profiles: list[cProfile.Profile]) -> cProfile.Profile:
    profiles.append(cProfile.Profile(time.thread_time, builtins=False))
    return profiles[-1]


def shares_by_part(stats: pstats.Stats) -> Counter[str]:
    """Seconds by the folder of this project, or the package, whose functions took them."""
    root = Path(__file__).resolve().parents[1]
    shares: Counter[str] = Counter()
    for (file, _, _), (_, _, own_seconds, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        if path.is_relative_to(root):
            part = "/".join(path.relative_to(root).parts[:2])
        else:
            part = path.parts[path.parts.index("site-packages") + 1] if "site-packages" in path.parts else "Python"
        shares[part] += own_seconds
    return shares


# --- several processes ------------------------------------------------------------------------------------------------


def messages(rank: int) -> None:
    """Every rank but 0 sends it a message, which it takes in any order."""
    for _ in range(RANKS - 1 if rank == 0 else 0):
        dist.recv(torch.zeros(1))
    if rank:
        dist.send(torch.ones(1), 0)


def print_jobs(jobs: int) -> None:
    """One line a policy."""
    print(f"{'policy':<8} {'executions':>10} {'CPU s of 1':>11} {f'of {jobs}':>6} {'ratio':>6} {'at most':>8}")
    for policy, program, executions in (("random", collectives, 1_000), ("dfs", messages, 2_000)):
        walls, cpus, counts = [], [], set()
        for number in (1, jobs):
            cpu, wall = sum(os.times()[:4]), time.perf_counter()
            done = explore(
                program, RANKS, policy=policy, jobs=number, budget=Budget(executions=executions, seconds=600)
            )
            walls.append(time.perf_counter() - wall)
            cpus.append(sum(os.times()[:4]) - cpu)
            counts.add(str(done))
        assert len(counts) == 1, counts
        cells = f"{cpus[0]:>11.1f} {cpus[1]:>6.1f} {walls[0] / walls[1]:>6.2f} {jobs * cpus[0] / cpus[1]:>8.2f}"
        print(f"{policy:<8} {executions:>10} {cells}", flush=True)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def planted(depth: int, fillers: int) -> Program:
    """A bug that shows if steps of ranks 0 and 1 alternate, as many as its depth and one more, rank 0 first.

    Rank 1 makes `fillers` other steps before each of its own; rank 0 makes none.
    """
    needed = "01010"[: depth + 1]

    def program(rank: int) -> None:
        store = distributed_c10d._get_default_store()
        for _ in range(needed.count(str(rank))):
            for _ in range(fillers if rank else 0):
                store.set("filler", "")
            store.append("order", str(rank))
        order = store.get("order").decode()
        assert len(order) <= depth or order != needed

    return program


def found(program: Program, policy: str, runs: int, depth: int | None = None) -> tuple[int, int | None]:
    """In how many executions of an exploration the bug shows, and in which first."""
    seen: list[Progress] = []
    budget = Budget(executions=runs, seconds=600)
    explore(program, 2, policy=policy, depth=depth, keep_going=True, budget=budget, on_progress=seen.append)
    return seen[-1].failures, next((each.executions for each in seen if each.failures), None)


def choices_of(program: Program) -> int:
    """The most choices that an execution has, of fifty."""
    return max(len(simulate(program, 2, policy=Pct(seed)).schedule.choices) for seed in range(50))


def print_bugs(runs: int = 1_000) -> None:
    """One line a depth."""
    print(f"planted bugs of 2 ranks, {runs} executions each; `first`: the first execution that shows it")
    print(f"{'depth':>5} {'choices':>8} {'promised':>9} {'PCT':>6} {'first':>6} {'random':>7} {'first':>6}")
    for depth, fillers in ((1, 8), (2, 12), (3, 12), (4, 3)):
        program = planted(depth, fillers)
        choices = choices_of(program)
        promised = runs / (2 * choices ** (depth - 1))
        by_pct, first = found(program, "pct", runs, depth)
        by_walk, first_by_walk = found(program, "random", runs)
        cells = f"{by_pct:>6} {first or '-':>6} {by_walk:>7} {first_by_walk or '-':>6}"
        print(f"{depth:>5} {choices:>8} {promised:>9.1f} {cells}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each program (default 5)")
    parser.add_argument("--bugs", action="store_true", help="planted bugs of depth 1 to 4")
    parser.add_argument("--jobs", type=int, help="compare so many processes with one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_rates(options.seconds)
    print_shares()
    if options.bugs:
        print_bugs()
    if options.jobs:
        print_jobs(options.jobs)


if __name__ == "__main__":
    main()
