"""The coalesced broadcast against torch's and against one broadcast per tensor, on real gloo with two processes.

    python -m benchmarks.coalesced_broadcast [--rounds 30]

Two spawned processes on this machine, one thread each for computing, in turn through all ways in every round; what is
timed lies between two barriers, on rank 0. torch's `_broadcast_coalesced` is shown with the 250 MiB that its DDP uses
(the state at construction, buffers before a forward) and with the 10 MiB that are our default; ratios are against the
faster of the two. To reach (issue 3): 1.3 times torch's speed for the state; for the small tensors 5 times that of one
broadcast per tensor, and not below torch's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from ddpsim.ddp.broadcast import broadcast_coalesced

MIB = 1024 * 1024
TIMEOUT_SECONDS = 60
LIMIT_SECONDS = 300
ONE_BY_ONE = "one broadcast per tensor"
TORCH_250 = "torch, 250 MiB"
TORCH_10 = "torch, 10 MiB"
OURS = "ours, 10 MiB"


def resnet50() -> list[Tensor]:
    """What ResNet-50 consists of: 161 parameters and 159 buffers of its 53 BatchNorms, 102 MB."""
    parameters: list[tuple[int, ...]] = []
    channels: list[int] = []

    def convolution(outputs: int, inputs: int, size: int) -> None:
        parameters.extend([(outputs, inputs, size, size), (outputs,), (outputs,)])  # with a BatchNorm behind it
        channels.append(outputs)

    convolution(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(width, inputs, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, inputs, 1)
            inputs = 4 * width
    parameters.extend([(1000, inputs), (1000,)])
    buffers = [torch.randn(count) for count in channels for _ in ("mean", "variance")]
    batch_counts = [torch.tensor(7) for _ in channels]
    # A module gives mean, variance and count of each BatchNorm in turn.
    in_turn = [each for n in range(len(channels)) for each in (*buffers[2 * n : 2 * n + 2], batch_counts[n])]
    return [torch.randn(shape) for shape in parameters] + in_turn


STATES: dict[str, Callable[[], list[Tensor]]] = {
    "ResNet-50's state": resnet50,
    "2,000 tensors of (1024,) float32": lambda: [torch.randn(1024) for _ in range(2000)],
    "2,000 tensors of (32, 32) float32": lambda: [torch.randn(32, 32) for _ in range(2000)],
}


def one_by_one(tensors: list[Tensor]) -> None:
    """What people write who know no better."""
    for tensor in tensors:
        dist.broadcast(tensor, 0)


def torch_coalesced(tensors: list[Tensor], buffer_bytes: int) -> None:
    """What torch's DDP calls."""
    dist._broadcast_coalesced(dist.group.WORLD, tensors, buffer_bytes, 0)


WAYS: dict[str, Callable[[list[Tensor]], None]] = {
    ONE_BY_ONE: one_by_one,
    TORCH_250: lambda tensors: torch_coalesced(tensors, 250 * MIB),
    TORCH_10: lambda tensors: torch_coalesced(tensors, 10 * MIB),
    OURS: lambda tensors: broadcast_coalesced(tensors, 0),
}


def measure(rank: int, rounds: int, folder: str) -> None:
    """One process: all rounds; rank 0 prints."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    for title, build in STATES.items():
        tensors = build()
        times: dict[str, list[float]] = {name: [] for name in WAYS}
        for number in range(rounds + 2):
            for name, broadcast in WAYS.items():
                for tensor in tensors:
                    tensor.fill_(rank + number)
                milliseconds = timed(broadcast, tensors)
                assert all(bool((tensor == number).all()) for tensor in tensors), name
                if number >= 2:  # the first two rounds connect and warm up
                    times[name].append(milliseconds)
        if rank == 0:
            print(table(title, tensors, times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def timed(broadcast: Callable[[list[Tensor]], None], tensors: list[Tensor]) -> float:
    """Milliseconds until both ranks are through."""
    dist.barrier()
    start = time.perf_counter()
    broadcast(tensors)
    dist.barrier()
    return (time.perf_counter() - start) * 1e3


def table(title: str, tensors: list[Tensor], times: dict[str, list[float]]) -> str:
    """Medians and ratios as text."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best_of_torch = min(medians[TORCH_250], medians[TORCH_10])
    lines = [f"{title}: {len(tensors)} tensors, {size / 1e6:.1f} MB, {len(times[OURS])} rounds"]
    lines.append(f"  {'milliseconds':<28}{'median':>8}{'least':>8}{'most':>8}{'median / ours':>16}")
    for name, values in times.items():
        row = f"  {name:<28}{medians[name]:8.1f}{min(values):8.1f}{max(values):8.1f}"
        lines.append(row + f"{medians[name] / medians[OURS]:16.2f}")
    lines.append(f"  the faster of torch's takes {best_of_torch / medians[OURS]:.2f} times as long as ours")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.spawn(measure, (options.rounds, str(Path(folder))), nprocs=2, join=False)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                raise SystemExit(f"not done after {LIMIT_SECONDS} s: give fewer --rounds")


if __name__ == "__main__":
    main()
