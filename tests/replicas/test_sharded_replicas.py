"""check="replicas" of DTensors: what a mesh says is replicated is compared along that dimension; shards are not."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from ddpsim import Verdict, simulate
from tests.kit.results import codes


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x)))) + 0


def steps(model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def hybrid(rank):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))
    steps(fully_shard(FeedForward(), mesh=mesh), torch.full((2, 2, 4), 1.0 + rank))


def tensor_parallel_and_sharded(rank):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = FeedForward()
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    }
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    steps(model, torch.arange(32.0).reshape(2, 4, 4) + mesh.get_local_rank("dp"))


@pytest.mark.filterwarnings("ignore:.*returned a view tensor")
@pytest.mark.parametrize(("program", "groups"), [(hybrid, 2), (tensor_parallel_and_sharded, 2)])
def test_replicas_that_are_trained_right_agree(program, groups):
    result = simulate(program, 4, check="replicas")
    assert result.verdict is Verdict.PASS, str(result)
    assert f"replicas were compared {3 * groups} times" in str(result)  # after two steps, and at the end


def test_shards_alone_are_no_replicas():
    def program(rank):
        torch.manual_seed(rank)  # each begins with its own, and FSDP2 shares nothing
        steps(fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,))), torch.ones(2, 4))

    assert codes(simulate(program, 2, check="replicas")) == [("unchecked", (0, 1))]


def test_a_replica_that_differs_is_found_along_its_dimension():
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        layer = nn.Linear(2, 2, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Replicate(), Shard(0)]))
        layer(
            DTensor.from_local(torch.ones(1, 2), mesh, [Replicate()] * 2, run_check=False)
        ).to_local().sum().backward()
        if rank == 3:
            layer.weight.grad._local_tensor.mul_(2)
        torch.optim.SGD(layer.parameters(), lr=0.5).step()

    [finding] = simulate(program, 4, check="replicas").findings
    assert (str(finding.code), finding.ranks) == ("divergence.parameters", (1, 3))
    assert finding.summary == (
        'weight[0, 0] differs between rank 1 and rank 3 after optimizer step 1 along group "dp (tp 1)"'
    )


def test_a_difference_that_is_mended_before_the_next_step_is_none():
    def program(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        weight = nn.Parameter(distribute_tensor(torch.ones(2), mesh, [Replicate()]))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for scale in (1.0 + rank, 1.0):
            weight.grad = DTensor.from_local(torch.full((2,), scale), mesh, [Replicate()], run_check=False)
            optimizer.step()
            dist.broadcast(weight.data._local_tensor, src=0)

    assert codes(simulate(program, 2, check="replicas")) == []


def dp_beside_tp(rank, *, reduces, dimensions=("dp", "tp"), plan=None, every=1):
    """`dp` is in no DTensor: the program reduces along it, or nobody does."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=dimensions)
    model = parallelize_module(FeedForward(), mesh["tp"], plan or {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(1, 5):
        batch = torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(step))
        model(batch[mesh.get_local_rank(0)]).square().sum().backward()
        if reduces == "gradients":
            average(mesh, [parameter.grad for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        if reduces == "parameters" and step % every == 0:
            average(mesh, [parameter.data for parameter in model.parameters()])


def average(mesh, tensors):
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        dist.all_reduce(local, group=mesh.get_group(0))
        local /= mesh.size(0)


def test_a_reduction_that_is_missing_along_dp_is_found_beside_tp():
    result = simulate(partial(dp_beside_tp, reduces=None), 4, check="replicas")
    assert {str(finding.code) for finding in result.findings} == {"divergence.parameters"}
    assert sorted(finding.summary.rpartition(" after ")[2] for finding in result.findings) == [
        f'optimizer step 1 along group "dp (tp {place})"' for place in (0, 1)
    ]
    assert {finding.ranks for finding in result.findings} == {(0, 2), (1, 3)}
    assert "do not use this data-parallel mesh dimension" in str(result)


@pytest.mark.parametrize("reduces", ["gradients", "parameters"])
def test_who_reduces_along_dp_has_replicas_there(reduces):
    result = simulate(partial(dp_beside_tp, reduces=reduces), 4, check="replicas")
    assert result.verdict is Verdict.PASS, str(result)
    assert ", along dp, tp" in result.checked


def test_averages_now_and_then_are_replicas_too():
    result = simulate(partial(dp_beside_tp, reduces="parameters", every=2), 4, check="replicas")
    assert result.verdict is Verdict.PASS, str(result)


def test_stages_of_a_pipeline_are_no_replicas_and_it_is_said_along_what_was_compared():
    result = simulate(partial(dp_beside_tp, reduces=None, dimensions=("pp", "tp")), 4, check="replicas")
    assert result.verdict is Verdict.PASS, str(result)
    assert result.checked == f"replicas were compared {result.comparisons} times, along tp"


def test_parts_of_a_dimension_that_was_flattened_are_sharded_with_it():
    def program(rank):
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
        steps(fully_shard(FeedForward(), mesh=mesh._flatten("fsdp")), torch.full((2, 2, 4), 1.0 + rank))

    assert codes(simulate(program, 4, check="replicas")) == [("unchecked", (0, 1, 2, 3))]
