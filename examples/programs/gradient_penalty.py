"""Gradients of gradients, hooks on parameters, frozen layers, and a second optimizer for one part of the model."""

import copy
import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    for p in net[0].parameters():
        p.requires_grad_(False)
    seen = []
    net[4].bias.register_hook(lambda grad: seen.append(grad.item()))
    model = DDP(net, gradient_as_bucket_view=True)
    optimizers = [torch.optim.SGD(net[2].parameters(), lr=0.1), torch.optim.Adam(net[4].parameters(), lr=0.01)]
    for step in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank)).requires_grad_()
        slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        loss = model(x).pow(2).mean() + 0 * slope.sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.5f} slope {slope.norm().item():.5f} bias {seen[-1]:.5f}")
    twin = copy.deepcopy(model.module)
    file = io.BytesIO()
    torch.save(model.module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x = torch.ones(1, 3)
    print(f"rank {rank} copies {torch.equal(twin(x), net(x))} {torch.equal(loaded(x), net(x))}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
