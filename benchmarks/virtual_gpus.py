"""The time of a training step on a virtual GPU and on the CPU, in one run.

    python -m benchmarks.virtual_gpus [--rounds 60]

One process, one thread, no communication: zero_grad, forward, loss, backward, AdamW. Each model is trained in two
copies, one on a virtual GPU and one on the CPU, in blocks in the order CPU, GPU, GPU, CPU, so that a slow moment of the
machine hits both. Figures are medians of the processor time of a step; what counts is the ratio, also as the median
over rounds of the ratio within the round (`pairs`). At the end both copies have the same bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement
from ddpsim.simulator.virtual_gpus.install import VirtualGpus

STEPS = 10
"""In a block."""


class Case(NamedTuple):
    """A model and the shape of its batch."""

    title: str
    build: Callable[[], nn.Module]
    batch: tuple[int, int]


def _layers(count: int, width: int) -> nn.Module:
    return nn.Sequential(*[part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())])


CASES = (
    Case("MLP 10-16-1, batch 8", lambda: nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)), (8, 10)),
    Case("8 layers of 256, batch 32", lambda: _layers(8, 256), (32, 256)),
    Case("4 layers of 1024, batch 64", lambda: _layers(4, 1024), (64, 1024)),
)


class _Copy:
    """One copy of a model, where it is trained."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.model = case.build().to(device)
        self._x = torch.randn(case.batch).to(device)
        # The default takes all parameters at once on a GPU: the same for both, here.
        self._optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)

    def seconds(self) -> float:
        """The processor time of one step of a block."""
        start = time.process_time()
        for _ in range(STEPS):
            self._optimizer.zero_grad()
            self.model(self._x).square().mean().backward()
            self._optimizer.step()
        return (time.process_time() - start) / STEPS

    def parameters(self) -> list[Tensor]:
        """What was trained."""
        return [parameter.detach().cpu() for parameter in self.model.parameters()]


def measure(case: Case, rounds: int) -> tuple[float, float, float]:
    """Medians in seconds on the CPU and on a virtual GPU, and the median of the ratios of pairs."""
    on_cpu = _Copy(case, "cpu")
    on_gpu = _Copy(case, "cuda")
    on_cpu.seconds(), on_gpu.seconds()  # both are warm now
    times = []
    for _ in range(rounds):
        first, *gpu, last = on_cpu.seconds(), on_gpu.seconds(), on_gpu.seconds(), on_cpu.seconds()
        times.append(((first + last) / 2, sum(gpu) / 2))
    assert all(map(torch.equal, on_cpu.parameters(), on_gpu.parameters()))
    cpu, gpu_times = zip(*times, strict=True)
    pairs = statistics.median(gpu_time / cpu_time for cpu_time, gpu_time in times)
    return statistics.median(cpu), statistics.median(gpu_times), pairs


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    VirtualGpus(FirstUseAnnouncement()).install(1)
    print(f"{'us a step: median':<30}{'CPU':>9}{'GPU':>9}{'ratio':>7}{'pairs':>7}")
    for case in CASES:
        cpu, gpu, pairs = measure(case, rounds)
        print(f"{case.title:<30}{cpu * 1e6:>9.0f}{gpu * 1e6:>9.0f}{gpu / cpu:>7.2f}{pairs:>7.2f}")


if __name__ == "__main__":
    main()
