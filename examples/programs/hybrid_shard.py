"""FSDP2 with mixed precision, accumulation without synchronisation, and activation checkpoints."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2)]
    model = nn.Sequential(*[checkpoint_wrapper(block) for block in blocks])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh["shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["shard"], mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        is_last = step % 2 == 1
        model.set_requires_gradient_sync(is_last)
        out = model(torch.randn(4, 8, generator=generator))
        loss = out.float().pow(2).mean()
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        print(f"rank {rank} step {step} {out.dtype} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
