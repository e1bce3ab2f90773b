"""The same schedule gives the same trace, in this interpreter and in others."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import replay, simulate


def train(rank, batches):
    """Uneven inputs under join, with numbers from the rank's own generator."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with model.join():
        for _ in range(batches[rank]):
            optimizer.zero_grad()
            model(torch.randn(3, 5)).square().mean().backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def messages(rank):
    """Receives from any source: what rank 0 sees depends on the schedule."""
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        return None
    tensor = torch.zeros(1)
    return [dist.recv(tensor) for _ in range(dist.get_world_size() - 1)]


def test_a_hundred_runs_of_one_schedule_are_one():
    first = simulate(messages, 5, policy="random", seed=3)
    token = str(first.schedule)
    runs = [replay(messages, 5, token) for _ in range(100)]
    assert {run.trace.digest() for run in runs} == {first.trace.digest()}
    assert all(run.returns == first.returns for run in runs)


def test_schedules_differ_in_what_they_show():
    """Otherwise the test above would show nothing."""
    runs = [simulate(messages, 5, policy="random", seed=seed) for seed in range(20)]
    assert len({run.trace.digest() for run in runs}) > 10
    assert len({tuple(run.returns[0]) for run in runs}) > 10


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_repeats_ddp_training_to_the_last_bit(seed):
    batches = [3, 1, 4, 2]
    first = simulate(train, 4, args=(batches,), policy="random", seed=seed)
    first.raise_for_verdict()
    again = replay(train, 4, first.schedule, args=(batches,))
    assert again.trace.digest() == first.trace.digest()


DIGESTS = """
from ddpsim import simulate
from tests.determinism.test_determinism import messages, train
print(simulate(messages, 5, policy="random", seed=3).trace.digest())
result = simulate(train, 3, args=([2, 0, 3],), policy="random", seed=1)
result.raise_for_verdict()
print(result.trace.digest(), result.schedule)
"""


@pytest.mark.tier("ci")
def test_two_interpreters_with_different_hash_seeds_agree():
    here = io.StringIO()
    with redirect_stdout(here):
        exec(DIGESTS, {})
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "4242"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == here.getvalue()
