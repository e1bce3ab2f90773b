"""A branch that some ranks leave out: find_unused_parameters, checkpointed activations, a static graph beside it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, use_left):
        x = checkpoint(self.stem, x, use_reentrant=False)
        return self.left(x) if use_left else self.right(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.ones(2, 4), use_left=(step + rank) % 2 == 0).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.5f}")
    fixed = DDP(Branches(), static_graph=True)
    for _ in range(3):
        fixed(torch.ones(2, 4), use_left=True).sum().backward()
    print(
        f"rank {rank} unused gradient {fixed.module.right.weight.grad} used {fixed.module.left.weight.grad.sum():.4f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
