"""DTensors on virtual GPUs: where they say that they are, and attention, whose kernel on the CPU knows no sharding."""

import textwrap

import pytest
import torch

from ddpsim import Verdict, simulate_program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

PROGRAM = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention

mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
here = torch.device("cuda", torch.cuda.current_device())
weight = distribute_tensor(torch.ones(4, 4), mesh["tp"], [Shard(0)])
assert (weight.device, weight.is_cuda, weight.is_cpu, weight.get_device()) == (here, True, False, here.index)
on_cpu = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (4,)), [Replicate()])
assert (on_cpu.device.type, on_cpu.is_cuda, on_cpu.is_cpu, on_cpu.get_device()) == ("cpu", False, True, -1)

# What fully_shard asks of parameters that are sharded already.
module = torch.nn.Linear(4, 4).cuda()
module.weight = torch.nn.Parameter(weight)
module.bias = None
fully_shard(module, mesh=mesh["dp"])

torch.manual_seed(1)
whole = [torch.randn(3, 2, 5, 4, device="cuda", requires_grad=True) for _ in range(3)]
parts = [distribute_tensor(each.detach(), mesh["tp"], [Shard(1)]).requires_grad_() for each in whole]
plain, sharded = (scaled_dot_product_attention(*each, is_causal=True) for each in (whole, parts))
torch.testing.assert_close(sharded.full_tensor(), plain, check_device=False)
plain.sum().backward()
sharded.sum().backward()
for one, other in zip(whole, parts):
    torch.testing.assert_close(other.grad.full_tensor(), one.grad, check_device=False)
"""


RANDOM = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)  # of which a mesh splits its groups
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(dist.get_rank())
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device=device)
for layer in (model[0], model[2]):
    nn.init.normal_(layer.weight)
    nn.init.uniform_(layer.bias)
drawn = [*model[0].parameters(), *model[2].parameters()]
wholes = [parameter.full_tensor().cpu() for parameter in drawn]
every = [None] * 4
dist.all_gather_object(every, [each.tolist() for each in wholes])
assert all(each == every[0] for each in every)  # replicas draw alike
assert len(set(wholes[0].flatten().tolist())) == 32  # and shards apart
torch.manual_seed(5)
nn.init.normal_(model[0].weight)
once = model[0].weight.full_tensor()
torch.manual_seed(5)
nn.init.normal_(model[0].weight)
assert torch.equal(once, model[0].weight.full_tensor())
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("program", [PROGRAM, RANDOM], ids=["tensors", "parameters that are drawn"])
def test_what_is_sharded(tmp_path, program):
    (tmp_path / "own.py").write_text(textwrap.dedent(program))
    result = simulate_program([str(tmp_path / "own.py")], 4, gpus=4)
    assert result.verdict is Verdict.PASS, str(result)
