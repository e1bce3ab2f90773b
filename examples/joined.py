"""hang.py with one line more: inside `model.join()`, the ranks that have run out of input keep the others going.

`ddpsim run examples/joined.py:train` runs it on four simulated ranks, and
`torchrun --nproc-per-node 4 examples/joined.py` on four processes with gloo. test_joined.py has the tests.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def batches(rank):
    """What this rank trains on: 5 batches, and 4 on rank 2."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 10, generator=generator) for _ in range(4 if rank == 2 else 5)]


def train(rank):
    """Train on this rank's batches, and return the model."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for batch in batches(rank):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trained = train(dist.get_rank())
    print(f"rank {dist.get_rank()}: bias {trained.bias.item():.6f}")
    dist.destroy_process_group()
