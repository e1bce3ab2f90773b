"""Parts of torch that scripts for GPUs use, on virtual ones: each comes to the numbers that it has on the CPU."""

import functools

import pytest
import torch
import torch._dynamo  # which torch's optimizers import: here once, for all ranks
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ddpsim import Verdict, simulate, simulate_program
from tests.kit.results import returned

pytestmark = pytest.mark.tier("ci")

WORLD_SIZE = 2


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)


def wrapped(model, device):
    index = torch.device(device).index
    return DistributedDataParallel(model, device_ids=None if index is None else [index])


def batch(rank, device):
    return torch.full((2, 4), rank + 1.0, device=device)


def gradients(model):
    return [parameter.grad.cpu() for parameter in model.parameters()]


class Masked(nn.Module):
    """Makes a tensor on the device by name, inside."""

    def __init__(self, device, reentrant):
        super().__init__()
        self.network, self.device, self.reentrant = network(device), device, reentrant

    def forward(self, x):
        return checkpoint(self._masked, x, use_reentrant=self.reentrant)

    def _masked(self, x):
        return self.network(x * torch.tensor([1.0, 0.0, 2.0, 1.0], device=self.device))


def checkpointed(rank, device, reentrant):
    model = wrapped(Masked(device, reentrant), device)
    model(batch(rank, device).requires_grad_()).square().mean().backward()
    return gradients(model)


def compressed(rank, device):
    model = wrapped(network(device), device)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(3):
        model(batch(rank, device)).square().mean().backward()
    return gradients(model)


def compressed_to_bfloat16(rank, device):
    """Which torch refuses, by the hook's name, where its build knows no CUDA and NCCL."""
    model = wrapped(network(device), device)
    hook = default_hooks.bf16_compress_hook
    model.register_comm_hook(None, hook if "cuda" in str(device) else lambda state, bucket: hook(state, bucket))
    model(batch(rank, device)).sum().backward()
    return gradients(model)


def hooked(rank, device):
    model = wrapped(network(device), device)

    def hook(state, bucket):
        share = bucket.buffer().to(device) / WORLD_SIZE
        future = dist.all_reduce(share, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] + torch.zeros(1, device=device))

    model.register_comm_hook(None, hook)
    model(batch(rank, device)).square().mean().backward()
    return gradients(model)


def joined(rank, device):
    model = wrapped(network(device), device)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    with Join([model, optimizer]):
        for _ in range(2 + rank):
            optimizer.zero_grad()
            model(batch(rank, device)).square().mean().backward()
            optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def sharded(rank, device):
    model = network(device)
    mesh = dist.init_device_mesh(torch.device(device).type, (WORLD_SIZE,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch(rank, device)).square().mean().backward()
        optimizer.step()
    return [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]


def sharded_flat(rank, device):
    from torch.distributed.fsdp import FullyShardedDataParallel

    index = torch.device(device).index
    model = FullyShardedDataParallel(network(device), device_id=torch.device("cpu") if index is None else index)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch(rank, device)).square().mean().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def recurrent(rank, device, kind):
    torch.manual_seed(0)
    model = wrapped(kind(4, 3, num_layers=2).to(device), device)
    model(batch(rank, device).unsqueeze(0))[0].square().sum().backward()
    return gradients(model)


def convolved(rank, device):
    torch.manual_seed(0)
    layers = nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 3)
    model = wrapped(nn.Sequential(*layers).to(device), device)
    model(torch.full((2, 4, 5, 5), rank + 1.0, device=device)).square().sum().backward()
    return gradients(model)


def optimized(rank, device, **options):
    model = wrapped(network(device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch(rank, device)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def loaded(rank, device):
    data = TensorDataset(torch.arange(8.0).view(8, 1))
    total = torch.zeros(1, device=device)
    for (x,) in DataLoader(data, batch_size=2, num_workers=1, pin_memory=True):
        x = x.to(device, non_blocking=True)
        assert x.device == torch.device(device)
        dist.all_reduce(x)
        total += x.sum()
    return [total.cpu()]


PROGRAMS = {
    "checkpoint": functools.partial(checkpointed, reentrant=False),
    "reentrant checkpoint": functools.partial(checkpointed, reentrant=True),
    "compressing hook": compressed,
    "hook that makes tensors": hooked,
    "hook that compresses to bfloat16": compressed_to_bfloat16,
    "Join and ZeRO": joined,
    "fully_shard": sharded,
    "FullyShardedDataParallel": sharded_flat,
    "LSTM": functools.partial(recurrent, kind=nn.LSTM),
    "GRU": functools.partial(recurrent, kind=nn.GRU),
    "convolutions": convolved,
    "fused AdamW": functools.partial(optimized, fused=True),
    "foreach AdamW": functools.partial(optimized, foreach=True),
    "workers that pin": loaded,
}


TO_ROUNDING = ("LSTM", "GRU")
"""Those whose kernels for a GPU torch has not, so that ours sum in another order."""


def everything(rank):
    """What each program comes to on a virtual GPU and on the CPU, by its name."""
    return {name: [program(rank, device) for device in (f"cuda:{rank}", "cpu")] for name, program in PROGRAMS.items()}


@pytest.fixture(scope="module")
def numbers():
    """By rank."""
    return returned(everything, WORLD_SIZE, isolation="process", gpus=WORLD_SIZE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_the_cpu(name, numbers):
    for here, there in (of_rank[name] for of_rank in numbers):
        assert len(here) == len(there) > 0
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(one, other, **({} if name in TO_ROUNDING else {"rtol": 0, "atol": 0}))


def test_one_process_may_divide_a_batch_among_its_gpus():
    def program(rank):
        told = []
        for wrap in (nn.Module.requires_grad_, nn.DataParallel):
            model, x = network("cuda"), torch.arange(28.0, device="cuda").view(7, 4)
            y = wrap(model)(x)
            y.square().sum().backward()
            told.append([y, *(parameter.grad for parameter in model.parameters())])
        torch.testing.assert_close(*told)
        return [str(each.device) for each in told[1]]

    assert returned(program, 1, isolation="process", gpus=3) == (["cuda:0"] * 5,)


def test_the_default_may_be_a_type_of_gpus():
    def program(rank):
        told = []
        for kind in ("torch.cuda.FloatTensor", torch.cuda.DoubleTensor, torch.FloatTensor):
            torch.set_default_tensor_type(kind)
            told.append((nn.Linear(1, 1).weight.device.type, torch.ones(1).dtype))
        return told

    expected = [("cuda", torch.float32), ("cuda", torch.float64), ("cpu", torch.float32)]
    assert returned(program, 1, isolation="process", gpus=1) == (expected,)


def test_what_is_compiled_runs_as_it_is_written(capfd):
    def program(rank):
        model = torch.compile(network("cuda"))

        @torch.compile(fullgraph=True)
        def doubled(x):
            return x * 2

        return type(model).__name__, doubled(torch.ones(1, device="cuda")).item()

    assert simulate(program, WORLD_SIZE, isolation="process", gpus=1).returns == (("Sequential", 2.0),) * WORLD_SIZE
    line = "ddpsim: torch.compile is left out on virtual GPUs: functions run as they are written\n"
    assert capfd.readouterr().err == line


def test_what_a_preloaded_module_compiled_runs_as_it_is_written(tmp_path):
    (tmp_path / "early.py").write_text("import torch\n\n@torch.compile\ndef doubled(x):\n    return x * 2\n")
    (program := tmp_path / "train.py").write_text(
        "import early, torch\nassert early.doubled(torch.ones(1, device='cuda')).item() == 2\n"
    )
    assert simulate_program([str(program)], 1, gpus=1, preload=("early",)).verdict is Verdict.PASS
