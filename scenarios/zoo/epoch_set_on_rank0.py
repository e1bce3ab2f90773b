"""Rank 0 sets its sampler's epoch, and the others keep the shuffle of the first one.

`set_epoch` is next to the log line, in the branch of rank 0. From the second epoch on rank 0 takes its part of
another permutation: some samples are read twice, others by no rank, and nothing else shows it.
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddpsim.scenarios.model import Code, finds, repairs, scenario

EPOCHS = 2
SAMPLES = TensorDataset(torch.arange(24))


@scenario(
    expected=finds(Code.HAZARD_SAMPLER, ranks=0),
    reports=["yangkky/distributed_tutorial#5"],
    tags=["data", "raw"],
    min_world_size=3,
)
def epoch_set_on_rank0(rank: int) -> list[int]:
    """Read all samples in each epoch; rank 0 alone says which one it is."""
    sampler: DistributedSampler[int] = DistributedSampler(SAMPLES)
    loader = DataLoader(SAMPLES, batch_size=2, sampler=sampler)
    read: list[int] = []
    for epoch in range(EPOCHS):
        if rank == 0:
            sampler.set_epoch(epoch)
        for (batch,) in loader:  # found here
            read += batch.tolist()
    return read


@repairs(epoch_set_on_rank0)
def repaired(rank: int) -> list[int]:
    """All ranks say it."""
    sampler: DistributedSampler[int] = DistributedSampler(SAMPLES)
    loader = DataLoader(SAMPLES, batch_size=2, sampler=sampler)
    read: list[int] = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            read += batch.tolist()
    return read
