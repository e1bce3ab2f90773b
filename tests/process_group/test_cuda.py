"""The same code with CUDA tensors: several ranks on one GPU."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.kit.results import returned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_collectives_and_messages(transport):
    def program(rank):
        mine = torch.full((1000,), float(rank + 1), device="cuda")
        dist.all_reduce(mine)
        copies = [torch.zeros(1000, device="cuda") for _ in range(3)]
        dist.all_gather(copies, mine * (rank + 1))
        works = dist.isend(mine, (rank + 1) % 3), dist.irecv(copies[0], (rank - 1) % 3)
        for work in works:
            work.wait()
        future = dist.all_reduce(mine, async_op=True).get_future().then(lambda done: done.value()[0] + 1)
        return [each.unique().tolist() for each in (*copies, future.wait())]

    assert returned(program, 3, transport=transport) == ([[6.0], [12.0], [18.0], [19.0]],) * 3


def test_objects():
    def program(rank):
        gathered = [None] * 3
        dist.all_gather_object(gathered, {"rank": rank})
        return gathered

    assert returned(program, 3) == ([{"rank": rank} for rank in range(3)],) * 3


def train(rank, device, inputs):
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(inputs[rank]):
            optimizer.zero_grad()
            batch = torch.linspace(-1, 1, 24).reshape(4, 6) * (rank + 1) + step
            model(batch.to(device)).square().mean().backward()
            optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_ddp_with_uneven_inputs_trains_as_on_the_cpu(transport):
    inputs = [3, 1, 2]
    on_gpu, on_cpu = (returned(train, 3, args=(device, inputs), transport=transport) for device in ("cuda", "cpu"))
    for rank in range(3):
        for mine, theirs in zip(on_gpu[rank], on_cpu[rank], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_same_schedule_gives_the_same_bits():
    runs = [returned(train, 3, args=("cuda", [2, 3, 1]), policy="random", seed=seed) for seed in (0, 0)]
    assert all(torch.equal(a, b) for first, again in zip(*runs, strict=True) for a, b in zip(first, again, strict=True))
