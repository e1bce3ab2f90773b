"""Every collective that gloo has, with its result: the first thing one tries on a new machine."""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0) + 10 * rank

    def show(name, value):
        print(f"rank {rank} {name} {value.tolist()}")

    x = mine.clone()
    dist.broadcast(x, src=1)
    show("broadcast", x)
    x = mine.clone()
    dist.reduce(x, dst=0)
    if rank == 0:
        show("reduce", x)
    x = mine.clone()
    dist.all_reduce(x, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.MIN)
    show("all_reduce", x)
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, mine)
    show("all_gather", torch.stack(parts))
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    dist.scatter(x, [p * 2 for p in parts] if rank == 0 else None, src=0)
    show("scatter", x)
    out = torch.empty(1)
    dist.reduce_scatter_tensor(out, mine)
    show("reduce_scatter_tensor", out)
    out = torch.empty(2)
    dist.all_to_all_single(out, mine)
    show("all_to_all_single", out)
    handles = [dist.all_reduce(t, async_op=True) for t in (x, out)]
    for handle in handles:
        handle.wait()
    show("asynchronous", x + out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
