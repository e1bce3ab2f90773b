"""torch.distributed.checkpoint: saved by some ranks, loaded by others, as torch's tests of it ask.

With other numbers of ranks, for sharded, replicated and plain values; what a planner refuses is refused on every rank.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing import assert_close

from ddpsim import simulate

VALUES = torch.arange(24.0).reshape(6, 4)


def run(program, world_size, *args, **options):
    result = simulate(program, world_size, args=args, **options)
    result.raise_for_verdict()
    return result.returns


def saved(rank, folder, placement):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"values": distribute_tensor(VALUES, mesh, [placement]), "step": 7, "plain": torch.ones(3)}
    checkpoint.save(state, checkpoint_id=folder)


def loaded(rank, folder, placement):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "values": distribute_tensor(torch.zeros_like(VALUES), mesh, [placement]),
        "step": 0,
        "plain": torch.zeros(3),
    }
    checkpoint.load(state, checkpoint_id=folder)
    return state["values"].full_tensor(), state["step"], state["plain"].tolist()


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (4, 2), (3, 1), (1, 4)])
@pytest.mark.parametrize(
    ("saves", "loads"), [(Shard(0), Shard(0)), (Shard(0), Shard(1)), (Shard(1), Replicate()), (Replicate(), Shard(0))]
)
def test_another_world_and_another_placement(before, after, saves, loads, tmp_path):
    run(saved, before, tmp_path, saves)
    for values, step, plain in run(loaded, after, tmp_path, loads):
        assert_close(values, VALUES, rtol=0, atol=0)
        assert (step, plain) == (7, [1.0, 1.0, 1.0])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def trained(rank, model, optimizer):
    for number in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank + number + 1))).square().mean().backward()
        optimizer.step()
    return [each.full_tensor().detach() for each in model.parameters()]


def test_training_resumed_from_a_checkpoint_goes_on_as_if_it_had_not_ended(tmp_path):
    def first(rank):
        model = fully_shard(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        trained(rank, model, optimizer)
        parameters, states = get_state_dict(model, optimizer)
        checkpoint.save({"model": parameters, "optimizer": states}, checkpoint_id=tmp_path)
        return trained(rank, model, optimizer)

    def second(rank):
        model = fully_shard(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        parameters, states = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": states}
        checkpoint.load(state, checkpoint_id=tmp_path)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return trained(rank, model, optimizer)

    went_on = run(first, 2)
    assert_close(run(second, 2), went_on, rtol=0, atol=0)


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_saved_by_a_thread_while_training_goes_on(isolation, tmp_path):
    def program(rank):
        model = fully_shard(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = [each.full_tensor().clone() for each in model.parameters()]
        threads = dist.new_group(backend="gloo")
        saving = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=tmp_path, process_group=threads)
        trained(rank, model, optimizer)
        saving.result()
        checkpoint.load({"model": model.state_dict()}, checkpoint_id=tmp_path)
        return all(map(torch.equal, before, (each.full_tensor() for each in model.parameters())))

    assert run(program, 2, isolation=isolation) == (True, True)


def test_a_key_that_was_not_saved_is_refused_on_every_rank(tmp_path):
    def program(rank):
        checkpoint.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)
        with pytest.raises(checkpoint.CheckpointException, match="Missing key in checkpoint state_dict: b"):
            checkpoint.load({"b": torch.ones(2)}, checkpoint_id=tmp_path)

    run(program, 2)


def test_a_shape_that_was_not_saved_is_refused_on_every_rank(tmp_path):
    def program(rank):
        checkpoint.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)
        with pytest.raises(checkpoint.CheckpointException, match="Size mismatch"):
            checkpoint.load({"a": torch.ones(3)}, checkpoint_id=tmp_path)

    run(program, 2)


def test_a_rank_that_does_not_save_is_missing(tmp_path):
    def program(rank):
        if rank != 1:
            checkpoint.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)

    [finding] = simulate(program, 3).findings
    assert (str(finding.code), finding.ranks) == ("deadlock.missing_rank", (1,))
