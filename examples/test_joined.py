"""Tests of joined.py, and of hang.py, which it mends: `pytest examples/test_joined.py`."""

import hang
import joined
import pytest
import torch


def trained_alone(world_size):
    """The same training in one process: what ranks have no batch for counts as zero in the average of gradients."""
    torch.manual_seed(0)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shares = [joined.batches(rank) for rank in range(world_size)]
    for step in range(max(map(len, shares))):
        optimizer.zero_grad()
        losses = [model(own[step]).square().mean() for own in shares if step < len(own)]
        (torch.stack(losses).sum() / world_size).backward()
        optimizer.step()
    return model


@pytest.mark.ranks(4)
def test_every_rank_ends_with_the_model_of_plain_training(rank, world_size):
    """The numbers are those of a program in which nothing is distributed."""
    model = joined.train(rank)
    torch.testing.assert_close(model.state_dict(), trained_alone(world_size).state_dict())


@pytest.mark.ranks(3)
def test_the_rank_that_joins_first_may_be_the_last_one(rank, world_size):
    """Of three ranks, rank 2 is the last."""
    model = joined.train(rank)
    torch.testing.assert_close(model.state_dict(), trained_alone(world_size).state_dict())


@pytest.mark.ranks(4, expect="deadlock.missing_rank")
def test_without_join_it_hangs(rank):
    """The mistake is still found where it is made."""
    hang.train(rank)
