"""Small networks and loops that the tests of origins, hazards and replicas share."""

import torch
from torch.nn.parallel import DistributedDataParallel


def network(*, normalised=False, seed=0):
    torch.manual_seed(seed)
    middle = [torch.nn.BatchNorm1d(4)] if normalised else []
    return torch.nn.Sequential(torch.nn.Linear(4, 4), *middle, torch.nn.Linear(4, 1))


def wrap(module, **options):
    """With the engine that a test puts in place of torch's here."""
    return DistributedDataParallel(module, **options)


def wrapped(*, normalised=False, seed=0, **options):
    return wrap(network(normalised=normalised, seed=seed), **options)


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def inputs(rank):
    return torch.arange(16.0).reshape(4, 4) / 16 + rank


def backward(model, rank):
    model(inputs(rank)).pow(2).sum().backward()


def train(model, optimizer, rank, steps, *, forward=None, skips=lambda step: False):
    for step in range(steps):
        optimizer.zero_grad()
        backward(forward or model, rank)
        if not skips(step):
            optimizer.step()
