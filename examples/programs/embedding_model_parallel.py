"""Parameters split by hand: an embedding on each rank, its activations exchanged by autograd's collectives."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ShardedEmbedding(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.rank)
        self.table = nn.Embedding(rows // self.size, dim)

    def forward(self, indices):
        gathered = [torch.empty_like(indices) for _ in range(self.size)]
        dist.all_gather(gathered, indices)
        wanted = torch.cat(gathered)
        mine = wanted % self.size == self.rank
        rows = self.table(torch.where(mine, wanted // self.size, 0)) * mine.unsqueeze(1)
        return dist_nn.all_reduce(rows).chunk(self.size)[self.rank]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    embedding = ShardedEmbedding(20, 4)
    torch.manual_seed(0)
    head = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
    for step in range(3):
        indices = torch.arange(5) * (rank + 1) + step
        loss = head(embedding(indices)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.5f} table {embedding.table.weight.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
