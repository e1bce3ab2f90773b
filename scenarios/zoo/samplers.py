"""Samples that are shuffled and shared between the ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot

SAMPLES = TensorDataset(torch.arange(24))


def read_samples(*, sets_epoch: bool) -> list[int]:
    """All samples of the rank in two epochs."""
    sampler: DistributedSampler[int] = DistributedSampler(SAMPLES)
    loader = DataLoader(SAMPLES, batch_size=2, sampler=sampler)
    read: list[int] = []
    for epoch in range(2):
        if sets_epoch:
            sampler.set_epoch(epoch)
        for (batch,) in loader:  # found here
            read += batch.tolist()
    return read


@scenario(
    expected=finds(Code.HAZARD_SAMPLER, ranks=0),
    reports=["yangkky/distributed_tutorial#5"],
    tags=["data", "raw"],
    min_world_size=3,
)
def epoch_set_on_rank0(rank: int) -> list[int]:
    """Rank 0 sets its sampler's epoch, and the others keep the shuffle of the first one.

    `set_epoch` is next to the log line, in the branch of rank 0. From the second epoch on rank 0 takes its part of
    another permutation: some samples are read twice, others by no rank, and nothing else shows it.
    """
    return read_samples(sets_epoch=rank == 0)


@repairs(epoch_set_on_rank0)
def epoch_set_on_rank0_repaired(rank: int) -> list[int]:
    """All ranks say it."""
    return read_samples(sets_epoch=True)


@scenario(
    expected=CLEAN,
    reports=[
        "pytorch/pytorch#31771",
        "pytorch/examples#760",
        "facebookresearch/detr#544",
        "goodfire-ai/spd#412",
        "pytorch/vision#7722",
    ],
    tags=["ddp", "oracle"],
)
def rng_policy(rank: int) -> None:
    """Control: every rank has a random seed of its own, for the weights before wrapping and for noise after it.

    Wrapping makes the weights rank 0's; dropout should differ, as equal seeds would waste noise. What the ranks
    must decide equally has another generator, seeded with the same number everywhere: here, whether to mirror a
    batch.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(), torch.nn.Linear(3, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shared = torch.Generator().manual_seed(0)
    for _ in range(3):
        batch = torch.randn(8, 4)
        if torch.rand((), generator=shared) < 0.5:
            batch = batch.flip(1)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def network() -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def samples(world_size: int) -> torch.Tensor:
    """The data set: four samples for each rank."""
    return torch.randn(4 * world_size, 4, generator=torch.Generator().manual_seed(0))


def step_alone(world_size: int) -> Snapshot:
    """One step on all samples, in any order."""
    model = network()
    model(samples(world_size)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model)


def train(rank: int, seed: int) -> Snapshot:
    """One step on the rank's share of the shuffled samples."""
    world_size = dist.get_world_size()
    model = DistributedDataParallel(network())
    order = torch.randperm(4 * world_size, generator=torch.Generator().manual_seed(seed))
    model(samples(world_size)[order[rank::world_size]]).square().mean().backward()  # found here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return snapshot(model.module)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#31771", "facebookresearch/detr#544", "goodfire-ai/spd#412"],
    tags=["ddp", "oracle"],
    reference=step_alone,
)
def rng_policy_own_permutation(rank: int) -> Snapshot:
    """Each rank shuffles the samples with a seed of its own before it takes its share, so shares overlap.

    Some samples are seen twice in an epoch and others never: a shuffle is a decision that must be the same on all
    ranks. All agree on the parameters, and real gloo shows no error.
    """
    return train(rank, seed=rank)


@repairs(rng_policy_own_permutation)
def rng_policy_own_permutation_repaired(rank: int) -> Snapshot:
    """Shuffle with the same seed everywhere; for another order in the next epoch, add its number."""
    return train(rank, seed=0)


def is_right(world_size: int) -> list[int]:
    """By sample, whether the model predicts it; there is one sample more than ranks."""
    return [1 - index % 2 for index in range(world_size + 1)]


def share(rank: int) -> torch.Tensor:
    """Which of a rank's samples are predicted, as its sampler deals them out."""
    world_size = dist.get_world_size()
    right = torch.tensor(is_right(world_size))
    sampler: DistributedSampler[int] = DistributedSampler(TensorDataset(right), world_size, rank, shuffle=False)
    return right[list(sampler)]


def metric(right: torch.Tensor) -> Snapshot:
    """The state of a metric, as it is kept in buffers."""
    return Snapshot({}, {"right": right}, {})


def metric_alone(world_size: int) -> Snapshot:
    """Over each sample once."""
    return metric(torch.tensor(sum(is_right(world_size))))


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=["pytorch/pytorch#25162", "huggingface/accelerate#540"],
    tags=["oracle"],
    reference=metric_alone,
)
def sampler_padding_counts_twice(rank: int) -> Snapshot:
    """A metric over the shares of DistributedSampler counts some samples twice.

    Where the samples cannot be shared out evenly, the sampler repeats the first ones until they can. All ranks
    agree, and real gloo shows no error.
    """
    right = share(rank).sum()
    dist.all_reduce(right)  # found here
    return metric(right)


@repairs(sampler_padding_counts_twice)
def sampler_padding_counts_twice_repaired(rank: int) -> Snapshot:
    """Gather what each sample gives, in the order of the samples, and leave out what comes after the last one."""
    mine = share(rank)
    world_size = dist.get_world_size()
    shares = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(shares, mine)
    in_order = torch.stack(shares, dim=1).flatten()
    return metric(in_order[: len(is_right(world_size))].sum())
