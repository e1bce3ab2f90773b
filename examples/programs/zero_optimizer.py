"""ZeroRedundancyOptimizer: each rank has a part of Adam's state, gathered on rank 0 for the checkpoint."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[nn.Linear(12, 12) for _ in range(4)]))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 12, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.6f}")
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        state = optimizer.state_dict()
        torch.save(state, "optimizer.pt")
        print("state of", len(state["state"]), "parameters")
    print(f"rank {rank} weights {sum(p.sum().item() for p in model.parameters()):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
