"""ZeRO by hand: each rank steps a slice of all parameters in one flat tensor, and gathers what the others stepped."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--adam", action="store_true")
    p.add_argument("--plain-alone", action="store_true")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(12 * a.steps, 6), torch.randn(12 * a.steps, 2))
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
    params = list(model.parameters())
    pad = torch.zeros(-sum(q.numel() for q in params) % size)
    flat = torch.cat([*(q.data.reshape(-1) for q in params), pad])
    part = slice(rank * flat.numel() // size, (rank + 1) * flat.numel() // size)
    shard = nn.Parameter(flat[part].clone())
    heat = nn.Parameter(torch.ones(2))
    is_plain = a.plain_alone and size == 1
    stepped = params if is_plain else [shard]
    opt = torch.optim.AdamW(stepped, 1e-2) if a.adam else torch.optim.SGD(stepped, lr=0.1, momentum=0.9)
    if a.bug == "extra":
        opt.add_param_group({"params": [heat]})
    for x, y in DataLoader(data, batch_size=12 // size, sampler=DistributedSampler(data, shuffle=False)):
        model.zero_grad()
        ((model(x) * (heat if a.bug == "extra" else 1.0) - y) ** 2).mean().backward()
        if is_plain:
            opt.step()
            continue
        grad = torch.cat([*(q.grad.reshape(-1) for q in params), pad])
        dist.all_reduce(grad)
        if heat.grad is not None:
            dist.all_reduce(heat.grad)
            heat.grad /= size
        shard.grad = grad[part] / (1 if a.bug == "sum" else size)
        square = shard.grad.square().sum()
        if a.bug != "norm":
            dist.all_reduce(square)
        shard.grad *= min(1.0, (100 if a.bug == "sum" or a.adam else 0.1) / square.sqrt().item())
        opt.step()
        full = torch.empty_like(flat)
        dist.all_gather(list(full.chunk(size)), shard.data)
        at = 0
        for number, q in enumerate(params):
            if a.bug != "left" or number != 2 or size == 1:
                q.data.copy_(full[at : at + q.numel()].view_as(q))
            at += q.numel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
