"""A DeviceMesh of two dimensions, reductions along each, and DTensors placed on it."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value, group=mesh.get_group("dp"))
    print(f"rank {rank} at {mesh.get_coordinate()} dp sum {value.item()} tp size {mesh['tp'].size()}")

    flat = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).reshape(4, 3)
    sharded = distribute_tensor(whole, flat, [Shard(0)])
    print(f"rank {rank} has {sharded.to_local().tolist()}")
    product = sharded @ distribute_tensor(torch.ones(3, 2), flat, [Replicate()])
    print(f"rank {rank} product {product.full_tensor().sum().item()}")
    partial = DTensor.from_local(torch.full((2,), float(rank)), flat, [Shard(0)])
    print(f"rank {rank} redistributed {partial.redistribute(flat, [Replicate()]).to_local().tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
