"""Uneven-input join under the simulator, beside torch's threaded group and the sequential floor, in one run.

    python -m benchmarks.uneven_join [--world-sizes 4 32 256 1024] [--rounds 5]

The case: a small MLP in torch's own DDP, ranks with 2 to 5 batches, inside `join()`. Three ways to run it:

- `simulated`  `ddpsim.simulate`, the whole of it: threads, groups, training, trace, result;
- `floor`      the same training with real DDP, one rank after another, each on a one-rank gloo group:
               what the engine itself costs, without communication;
- `threaded`   torch's threaded group for tests (torch.testing._internal.distributed.multi_threaded_pg), a
               thread a rank.

Rounds alternate between the three, so that a slow moment of the machine hits all; figures are CPU time of the whole
process, the least of the rounds, and what counts are the ratios within one run. Each begins without the garbage of the
one before, which it would pay for. `threaded` is left out above --threaded-limit ranks, where it takes minutes. The
last column is the most memory that the process has had so far.

What is above the floor is 23 calls and 17 switches a rank, whose number is the schedule's, so ranks cannot share them.
Counted by valgrind, a rank takes 13.8 million instructions among 4 ranks and 13.4 among 64, with nothing that grows up
to 128 (floor: 7.9, of which gloo is 0.6). They are 73,000 bytecodes of the simulator's, in 150 functions, of which the
largest (`locate` of origins.py, which walks the stack) is a tenth, beside 30,000 of torch's. For locks a rank asks the
system 44 times; two of each switch are the least. What grows with the world is misses of the caches: among 96 ranks a
rank misses 41,000 lines of data and 22,000 of code in one of 1 MiB.

Moving data takes little: an all_reduce adds each rank's tensor once, and one call of torch copies the sum to all.
Tried, by leaving out altogether what would be shared or spared:

- asking each Reducer for its buckets, counting the steps of optimizers, and reading process-wide settings at each
  switch are 2 % together; one arena for all threads, and huge pages, change nothing (512 ranks);
- the marks that torch leaves for profilers at each forward, step and zero_grad are 3.5 % of the instructions. They
  stay, as there is no asking who looks at them: profilers, observers of traces, modes;
- what keeps torch's compiler out of zero_grad is nothing.
"""

from __future__ import annotations

import argparse
import gc
import resource
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import multi_threaded_pg

from ddpsim import Verdict, simulate


def batches(rank: int) -> int:
    """How many batches a rank has: 2, 3, 4, 5, 2, ..."""
    return 2 + rank % 4


def train(rank: int, join: bool = True) -> None:
    """Train for the rank's batches; every rank starts from the same parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    batch = torch.full((4, 10), float(rank + 1))
    with wrapped.join(enable=join):
        for _ in range(batches(rank)):
            optimizer.zero_grad()
            wrapped(batch).square().mean().backward()
            optimizer.step()


def simulated(world_size: int) -> None:
    """The case under the simulator."""
    result = simulate(train, world_size)
    assert result.verdict is Verdict.PASS, str(result)


def floor(world_size: int) -> None:
    """The same training on one-rank groups, one rank after another."""
    for rank in range(world_size):
        train(rank)


def threaded(world_size: int) -> None:
    """The case on torch's threaded group."""
    store = dist.HashStore()
    failures: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            torch.autograd.set_multithreading_enabled(False)
            train(rank)
            dist.destroy_process_group()
        except BaseException as error:
            failures.append(error)
            raise

    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
        multi_threaded_pg.ProcessLocalGroup.reset()
    assert not failures, failures[0]


def seconds(run: Callable[[int], None], world_size: int) -> float:
    """CPU seconds of one run."""
    start = time.process_time()
    run(world_size)
    return time.process_time() - start


def floor_seconds(world_size: int) -> float:
    """CPU seconds of the floor; making and destroying its group does not count."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        return seconds(floor, world_size)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[4, 32, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--threaded-limit", type=int, default=32, help="most ranks for the threaded group")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[int], float]] = {
        "simulated": partial(seconds, simulated),
        "floor": floor_seconds,
        "threaded": partial(seconds, threaded),
    }
    print(f"torch {torch.__version__}, CPU time, the least of {options.rounds} alternating rounds")
    print(
        f"{'ranks':>6}  {'simulated':>12}  {'floor':>12}  {'threaded':>12}  {'/ floor':>8}  {'us/rank':>8}  {'MiB':>6}"
    )
    for world_size in options.world_sizes:
        chosen = {name: run for name, run in ways.items() if name != "threaded" or world_size <= options.threaded_limit}
        for run in chosen.values():
            run(min(world_size, 32))
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(options.rounds):
            for name, run in chosen.items():
                gc.collect()
                times[name].append(run(world_size))
        least = {name: min(values) for name, values in times.items()}
        cells = [f"{least[name] * 1e3:9.1f} ms" if name in least else f"{'-':>12}" for name in ways]
        ratio = least["simulated"] / least["floor"]
        per_rank = least["simulated"] / world_size * 1e6
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(f"{world_size:>6}  " + "  ".join(cells) + f"  {ratio:8.2f}  {per_rank:8.0f}  {most:6.0f}", flush=True)


if __name__ == "__main__":
    main()
