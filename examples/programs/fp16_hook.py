"""Gradients sent in half precision: fp16_compress_hook, and the wrapper around all_reduce."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, register):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        loss = model(torch.randn(4, 8, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), sum(p.sum().item() for p in model.parameters())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hooks = {
        "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
        "wrapper": lambda model: model.register_comm_hook(
            None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
        ),
    }
    for name, register in hooks.items():
        loss, weights = train(rank, register)
        print(f"rank {rank} {name} loss {loss:.4f} weights {weights:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
