"""The time of a training step under torch's DistributedDataParallel and under ours, on real gloo with two processes.

    python -m benchmarks.step_time [--rounds 40] [--models mlp layers transformer]

Two spawned processes on this machine, one thread each for computing. Each model is trained in two copies, one under
each engine, over one process group: blocks of steps (zero_grad, forward, loss, backward, SGD) in the order torch, ours,
ours, torch, so that a slow moment of the machine hits both. What is timed lies between two barriers, on rank 0; a
figure is the time of a block divided by its steps. The ratios, ours to torch's: of the medians, of the least, the
median over rounds of the ratio within the round (`pairs`), and of the medians of the processor time that rank 0 took,
with all its threads (`CPU`). On a machine that does other things, too, trust the last three. At the end both copies
have the same bits.

To reach (issue 3): at most 1.00 times torch's time for each model, both engines as they are by default. There ours
keeps gradients as views of its buckets, while torch's copies them out of its own. For information, the other rows give
both the same argument: gradient_as_bucket_view=True, where neither copies, and find_unused_parameters=True.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim.ddp import DistributedDataParallel as OurEngine

TIMEOUT_SECONDS = 60
LIMIT_SECONDS = 600
BLOCK_SECONDS = 0.05
"""About how long a block of steps takes."""

SETTINGS: dict[str, dict[str, bool]] = {
    "by default": {},
    "gradient_as_bucket_view=True": {"gradient_as_bucket_view": True},
    "find_unused_parameters=True": {"find_unused_parameters": True},
}
"""What both engines are given."""

HEADER = f"  {'ms a step: median (least)':<46}{'torch':>17}{'ours':>17}{'ratio':>7}{'least':>7}{'pairs':>7}{'CPU':>7}"


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the shape of its batch."""

    title: str
    build: Callable[[], nn.Module]
    batch: tuple[int, ...]


def layers(count: int, width: int) -> nn.Module:
    """Square layers with ReLU in between."""
    parts = [part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def transformer() -> nn.Module:
    """Four layers with attention; no dropout, so that both copies compute the same."""
    layer = nn.TransformerEncoderLayer(256, nhead=4, dim_feedforward=1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=4)


CASES = {
    "mlp": Case("MLP of 8 x 1024^2, batch 32", lambda: layers(8, 1024), (32, 1024)),
    "layers": Case("200 layers of 64^2, batch 32", lambda: layers(200, 64), (32, 64)),
    "transformer": Case("transformer of 4 layers of 256, batch 8 x 64", transformer, (8, 64, 256)),
}


@dataclass(frozen=True, slots=True)
class Trainee:
    """A wrapped model and its optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, model: nn.Module) -> Trainee:
        """With plain SGD, the cheapest step there is, so that the engine shows."""
        return cls(model, torch.optim.SGD(model.parameters(), lr=1e-3))

    def step(self, batch: Tensor) -> None:
        """What is measured."""
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()


def measure(rank: int, names: list[str], rounds: int, folder: str) -> None:
    """One process: all cases; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    for title, settings in SETTINGS.items():
        if rank == 0:
            print(f"\n{title}\n{HEADER}")
        for name in names:
            times = compare(CASES[name], settings, rank=rank, rounds=rounds)
            if rank == 0:
                print(row(CASES[name].title, *times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds a step."""

    wall: float
    processor: float

    @classmethod
    def mean(cls, first: Timing, second: Timing) -> Timing:
        """Of two blocks of one length."""
        return cls((first.wall + second.wall) / 2, (first.processor + second.processor) / 2)


def compare(case: Case, settings: dict[str, bool], *, rank: int, rounds: int) -> tuple[list[Timing], list[Timing]]:
    """The steps of each round, of torch's engine and of ours."""
    torch.manual_seed(0)
    module = case.build()
    copies = module, copy.deepcopy(module)
    theirs = Trainee.of(TorchEngine(copies[0], **settings))
    ours = Trainee.of(OurEngine(copies[1], **settings))
    torch.manual_seed(1 + rank)
    batch = torch.randn(case.batch)
    for _ in range(2):  # the first time connects, and lays out the buckets anew
        warm = [timed(each, batch, 3).wall for each in (theirs, ours)]
    steps = agreed_steps(min(warm))
    timings: tuple[list[Timing], list[Timing]] = [], []
    for _ in range(rounds):
        first, second, third, fourth = (timed(each, batch, steps) for each in (theirs, ours, ours, theirs))
        timings[0].append(Timing.mean(first, fourth))
        timings[1].append(Timing.mean(second, third))
    assert all(map(torch.equal, copies[0].parameters(), copies[1].parameters())), case.title
    return timings


def timed(trainee: Trainee, batch: Tensor, steps: int) -> Timing:
    """Until both ranks are through."""
    dist.barrier()
    start, processor_start = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainee.step(batch)
    dist.barrier()
    wall, processor = time.perf_counter() - start, time.process_time() - processor_start
    return Timing(wall * 1e3 / steps, processor * 1e3 / steps)


def agreed_steps(step_milliseconds: float) -> int:
    """How many steps make a block, as rank 0 sees it."""
    steps = torch.tensor(max(1, round(BLOCK_SECONDS * 1e3 / step_milliseconds)))
    dist.broadcast(steps, 0)
    return int(steps.item())


def row(title: str, theirs: list[Timing], ours: list[Timing]) -> str:
    """Medians, least values and ratios of ours to torch's."""
    walls = [each.wall for each in theirs], [each.wall for each in ours]
    processors = [each.processor for each in theirs], [each.processor for each in ours]
    medians, least = tuple(map(statistics.median, walls)), tuple(map(min, walls))
    taken = tuple(map(statistics.median, processors))
    pairs = statistics.median(own / other for other, own in zip(*walls, strict=True))
    cells = "".join(f"{median:8.2f} ({low:6.2f})" for median, low in zip(medians, least, strict=True))
    ratios = medians[1] / medians[0], least[1] / least[0], pairs, taken[1] / taken[0]
    return f"  {title:<46}{cells}" + "".join(f"{ratio:7.3f}" for ratio in ratios)


def load() -> str:
    """What else the machine does."""
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg()) + f" on {os.cpu_count()} cores"


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="each of four blocks (default 40)")
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    print(f"torch {torch.__version__}, gloo, two processes, {options.rounds} rounds; {load()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = options.models, options.rounds, folder
        context = torch.multiprocessing.spawn(measure, arguments, nprocs=2, join=False)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                raise SystemExit(f"not done after {LIMIT_SECONDS} s: give fewer --rounds")
    print(f"\nafterwards {load()}")


if __name__ == "__main__":
    main()
