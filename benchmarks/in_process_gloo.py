"""In-process gloo under the simulator, beside bare threads that do the same with gloo, in one run.

    python -m benchmarks.in_process_gloo [--world-sizes 2 4 8] [--rounds 9]

The case is that of benchmarks.uneven_join: a small MLP in torch's own DDP, ranks with 2 to 5 batches, inside `join()`.

- `gloo`     `ddpsim.simulate(..., transport="gloo")`, the whole of it;
- `bare`     a thread a rank, each with a gloo group of its own over one HashStore: init_process_group, the training,
             destroy_process_group. No scheduler, nothing found: what people could do with torch alone;
- `memory`   `simulate` with the transport it has by default.

Rounds alternate between the three; figures are medians, and what counts is the ratio gloo / bare within one run.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.uneven_join import seconds, train
from ddpsim import Verdict, simulate
from tests.semantics.real_gloo import state_per_thread


def simulated(world_size: int, *, transport: str) -> None:
    """The case under the simulator."""
    result = simulate(train, world_size, transport=transport)
    assert result.verdict is Verdict.PASS, str(result)


def bare(world_size: int) -> None:
    """The case on gloo, with nothing but threads."""
    store = dist.HashStore()
    failures: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            with torch.autograd.set_multithreading_enabled(False):
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
                train(rank)
                dist.destroy_process_group()
        except BaseException as error:
            failures.append(error)
            raise

    with state_per_thread():
        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=9, help="alternating rounds (default 9)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[int], None]] = {
        "gloo": partial(simulated, transport="gloo"),
        "bare": bare,
        "memory": partial(simulated, transport="memory"),
    }
    print(f"torch {torch.__version__}, medians of {options.rounds} alternating rounds")
    print(f"{'ranks':>6}  {'gloo':>12}  {'bare':>12}  {'memory':>12}  {'gloo / bare':>11}")
    for world_size in options.world_sizes:
        for run in ways.values():
            run(world_size)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, run in ways.items():
                times[name].append(seconds(run, world_size))
        median = {name: statistics.median(values) for name, values in times.items()}
        cells = "  ".join(f"{median[name] * 1e3:9.1f} ms" for name in ways)
        print(f"{world_size:>6}  {cells}  {median['gloo'] / median['bare']:11.2f}", flush=True)


if __name__ == "__main__":
    main()
