"""Early stopping: the loss of all ranks decides, and the decision is reduced so that all stop together."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad_epochs = 0

    def should_stop(self, loss):
        if loss < self.best - 1e-3:
            self.best, self.bad_epochs = loss, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    stopping = EarlyStopping(patience=2)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(16, 4, generator=generator)
    y = x.sum(dim=1, keepdim=True)
    stop = torch.zeros(1)
    epoch = 0
    while epoch < 100:
        epoch += 1
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if rank == 0 and stopping.should_stop(mean.item()):
            stop += 1
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
    print(f"rank {rank} stopped after epoch {epoch} at {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
