"""torch.distributed.checkpoint: saved by some ranks, loaded by others, as torch's tests of it ask.

With other numbers of ranks, for sharded, replicated and plain values; what a planner refuses is refused on every rank.
"""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.format_utils import (
    BroadcastingTorchSaveReader,
    DynamicMetaLoadPlanner,
    dcp_to_torch_save,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing import assert_close

from ddpsim import simulate
from tests.kit.results import returned

VALUES = torch.arange(24.0).reshape(6, 4)


def run(program, world_size, *args, **options):
    return returned(program, world_size, args=args, **options)


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


def test_a_save_notes_that_values_under_one_key_are_not_compared(tmp_path):
    result = simulate(saved, 2, args=(tmp_path, Shard(0)))
    line = saved.__code__.co_firstlineno + 3
    assert result.notes == (
        "not checked: whether ranks saved unlike values under one key of the checkpoint of "
        f"test_checkpoints.py:{line}, which keeps one",
    )
    assert simulate(loaded, 2, args=(tmp_path, Shard(0))).notes == ()


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


def whole_state(model, optimizer):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(model, optimizer, options=options)


@pytest.mark.tier("nightly")
def test_a_whole_state_is_on_rank_0_and_goes_from_there_to_all_shards():
    def program(rank):
        model = fully_shard(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        trained(rank, model, optimizer)
        parameters, states = whole_state(model, optimizer)
        sizes = len(parameters), len(states)
        other = fully_shard(network())
        resumed = torch.optim.Adam(other.parameters(), lr=0.1)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(other, parameters, options=options)
        own = copy.deepcopy(states)  # on its rank the counts of steps are those of the first
        set_optimizer_state_dict(other, resumed, own, options=options)
        return sizes, trained(rank, model, optimizer), trained(rank, other, resumed)

    returns = run(program, 2)
    assert [sizes for sizes, _, _ in returns] == [(4, 2), (0, 0)]
    for _, went_on, resumed in returns:
        assert_close(resumed, went_on, rtol=0, atol=0)


@pytest.mark.tier("nightly")
def test_a_key_too_many_and_one_too_few_are_told_on_every_rank():
    def program(rank):
        model = fully_shard(network())
        state = get_model_state_dict(model)
        state["surplus"] = torch.zeros(2)
        with pytest.raises(RuntimeError, match="Unexpected key"):
            set_model_state_dict(model, state)
        del state["0.bias"]
        loose = set_model_state_dict(model, state, options=StateDictOptions(strict=False))
        del state["surplus"]
        with pytest.raises(RuntimeError, match="Missing key"):
            set_model_state_dict(model, state)
        return list(loose.missing_keys), list(loose.unexpected_keys)

    assert run(program, 2) == ((["0.bias"], ["surplus"]),) * 2


@pytest.mark.tier("nightly")
def test_the_state_of_an_optimizer_by_names_of_parameters(tmp_path):
    def first(rank):
        model = fully_shard(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        trained(rank, model, optimizer)
        checkpoint.save(by_name(model, optimizer), checkpoint_id=tmp_path)
        return sorted(each for each in by_name(model, optimizer) if each.startswith("state.0.bias"))

    def second(rank):
        model = fully_shard(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        state = by_name(model, optimizer)
        checkpoint.load(state, checkpoint_id=tmp_path)
        set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(flatten_optimizer_state_dict=True))
        [group] = optimizer.param_groups
        moments = {name: optimizer.state[each]["exp_avg"].full_tensor() for name, each in model.named_parameters()}
        return group["lr"], moments["0.bias"]

    def by_name(model, optimizer):
        return get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))

    # Two ranks save, three load; the moments are those of all.
    names = ["state.0.bias.exp_avg", "state.0.bias.exp_avg_sq", "state.0.bias.step"]
    assert run(first, 2) == (names,) * 2
    loaded_by = run(second, 3)
    assert {rate for rate, _ in loaded_by} == {0.1}
    assert loaded_by[0][1].abs().min() > 0
    for _, moment in loaded_by:
        assert torch.equal(moment, loaded_by[0][1])


@pytest.mark.tier("nightly")
@pytest.mark.filterwarnings("ignore:`_get_pg_default_device`")
def test_a_file_of_one_process_is_read_by_one_rank_and_a_checkpoint_of_several_becomes_one(tmp_path):
    def program(rank):
        if rank == 0:
            torch.save({"values": VALUES}, tmp_path / "whole.pt")
        dist.barrier()
        state = {"values": torch.zeros_like(VALUES)}
        reader, planner = BroadcastingTorchSaveReader(), DynamicMetaLoadPlanner()
        checkpoint.load(state, storage_reader=reader, planner=planner, checkpoint_id=tmp_path / "whole.pt")
        mesh = init_device_mesh("cpu", (2,))
        shards = {"values": distribute_tensor(state["values"], mesh, [Shard(0)])}
        checkpoint.save(shards, checkpoint_id=tmp_path / "sharded")
        return state["values"]

    for values in run(program, 2):
        assert torch.equal(values, VALUES)
    dcp_to_torch_save(tmp_path / "sharded", tmp_path / "again.pt")
    assert torch.equal(torch.load(tmp_path / "again.pt")["values"], VALUES)


def test_an_object_that_keeps_its_own_state(tmp_path):
    class Progress:
        def __init__(self, epoch):
            self.epoch = epoch

        def state_dict(self):
            return {"epoch": self.epoch}

        def load_state_dict(self, state):
            self.epoch = state["epoch"]

    def program(rank):
        checkpoint.save({"progress": Progress(3)}, checkpoint_id=tmp_path)
        resumed = Progress(0)
        checkpoint.load({"progress": resumed}, checkpoint_id=tmp_path)
        return resumed.epoch

    assert run(program, 2) == (3, 3)


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


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"b": torch.ones(2)}, "Missing key in checkpoint state_dict: b"),
        ({"a": torch.ones(3)}, "Size mismatch"),
    ],
    ids=["key", "shape"],
)
def test_what_was_not_saved_is_refused_on_every_rank(tmp_path, state, told):
    def program(rank):
        checkpoint.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)
        with pytest.raises(checkpoint.CheckpointException, match=told):
            checkpoint.load(state, checkpoint_id=tmp_path)

    run(program, 2)


def test_a_rank_that_does_not_save_is_missing(tmp_path):
    def program(rank):
        if rank != 1:
            checkpoint.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)

    [finding] = simulate(program, 3).findings
    assert (str(finding.code), finding.ranks) == ("deadlock.missing_rank", (1,))
