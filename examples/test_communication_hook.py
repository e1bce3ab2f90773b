"""Tests of communication_hook.py, and of two mistakes in such a hook: `pytest examples/test_communication_hook.py`."""

import communication_hook
import pytest
import torch
import torch.distributed as dist


def trained_alone(world_size):
    """The same training in one process, the halves of each rank worked out one after the other."""
    model = communication_hook.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [[torch.zeros_like(parameter) for parameter in model.parameters()] for _ in range(world_size)]
    for step in range(communication_hook.STEPS):
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rank in range(world_size):
            loss = model(communication_hook.batches(rank)[step]).square().mean()
            for index, gradient in enumerate(torch.autograd.grad(loss, list(model.parameters()))):
                wanted = gradient + kept[rank][index]
                sent = torch.where(wanted.abs() < wanted.abs().median(), 0.0, wanted)
                kept[rank][index] = wanted - sent
                total[index] += sent
        for parameter, summed in zip(model.parameters(), total, strict=True):
            parameter.grad = summed / world_size
        optimizer.step()
    return model


def check(model, world_size):
    """Fail if a rank's model is not that of plain training."""
    torch.testing.assert_close(model.state_dict(), trained_alone(world_size).state_dict())


def kept_by_bucket(kept, bucket):
    """The hook with a mistake: what was not sent is kept by the number of the bucket."""
    gradients = bucket.buffer()
    gradients += kept.get(bucket.index(), 0.0)
    is_sent = torch.cat([communication_hook.larger_half(each).flatten() for each in bucket.gradients()])
    kept[bucket.index()] = gradients * ~is_sent
    gradients *= is_sent
    work = dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def sends_nothing_small(kept, bucket):
    """The hook with another mistake: a rank with small gradients makes no call, and the others do."""
    if bucket.buffer().norm() < 0.7:
        kept.clear()
        unchanged = torch.futures.Future()
        unchanged.set_result(bucket.buffer())
        return unchanged
    return communication_hook.send_larger_half(kept, bucket)


@pytest.mark.ranks(3)
def test_it_trains_as_one_process_would(rank, world_size):
    """All that is left out is sent later, and to the right parameter."""
    check(communication_hook.train(rank), world_size)


@pytest.mark.ranks(3, policy="random", seeds=range(5))
def test_in_any_interleaving(rank, world_size):
    """What a hook returns does not depend on who comes first."""
    check(communication_hook.train(rank), world_size)


@pytest.mark.ranks(3, expect="rank_error")
def test_what_is_kept_by_bucket_goes_to_other_parameters(rank, world_size):
    """Nothing fails, and all ranks agree; only the numbers are wrong."""
    check(communication_hook.train(rank, kept_by_bucket), world_size)


@pytest.mark.ranks(3, expect="mismatch.origin")
def test_a_hook_that_makes_no_call_on_some_ranks(rank):
    """The call of one step meets that of another one."""
    communication_hook.train(rank, sends_nothing_small)
