"""Tests of joinable.py, and of a shadow that forgets a collective: `pytest examples/test_joinable.py`."""

import joinable
import pytest
import torch
import torch.distributed as dist


class ForgetfulShadow(joinable.Shadow):
    """A shadow that makes the first of two collectives."""

    def main_hook(self):
        """Nobody has thought of the largest loss."""
        dist.all_reduce(torch.zeros(2))


class ForgetfulMeter(joinable.LossMeter):
    """A meter with such a shadow."""

    def join_hook(self, **kwargs):
        """What a rank does once it has joined."""
        return ForgetfulShadow(self)


def losses_alone(world_size):
    """For each step the losses of the ranks that make it, by training in one process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shares = [joinable.batches(rank) for rank in range(world_size)]
    for step in range(max(map(len, shares))):
        optimizer.zero_grad()
        losses = torch.stack([model(own[step]).square().mean() for own in shares if step < len(own)])
        (losses.sum() / world_size).backward()
        optimizer.step()
        yield losses.tolist()


@pytest.mark.ranks(4)
def test_every_rank_has_the_losses_of_all_steps(rank, world_size):
    """Also rank 0, which makes one step of four."""
    meter = joinable.train(rank)
    losses = list(losses_alone(world_size))
    assert meter.means == pytest.approx([sum(each) / len(each) for each in losses])
    assert meter.largest == pytest.approx([max(each) for each in losses])


@pytest.mark.ranks(4, explore="dpor")
def test_in_every_interleaving(rank):
    """All that ranks do to each other is collective, so one execution stands for all."""
    assert len(joinable.train(rank).means) == 4


@pytest.mark.ranks(4, expect="mismatch.reduction")
def test_a_shadow_that_forgets_a_collective(rank):
    """What the rank that has joined does next meets the call that its shadow leaves out."""
    joinable.train(rank, ForgetfulMeter)
