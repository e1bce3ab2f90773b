"""Evaluation on all ranks: predictions gathered, padding of the sampler cut off, the best model kept by rank 0."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.no_grad()
def evaluate(model, loader, total):
    model.eval()
    hits, labels = [], []
    for x, y in loader:
        hits.append(model(x).argmax(dim=1))
        labels.append(y)
    hits, labels = torch.cat(hits), torch.cat(labels)
    world_size = dist.get_world_size()
    all_hits = torch.empty(world_size * len(hits), dtype=hits.dtype)
    all_labels = torch.empty(world_size * len(labels), dtype=labels.dtype)
    dist.all_gather_into_tensor(all_hits, hits)
    dist.all_gather_into_tensor(all_labels, labels)
    order = torch.arange(world_size * len(hits)).reshape(world_size, -1).T.flatten()
    model.train()
    return (all_hits[order][:total] == all_labels[order][:total]).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    x = torch.randn(61, 6)
    y = (x[:, 0] > x[:, 1]).long()
    train, test = TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:])
    loader = DataLoader(train, batch_size=5, sampler=DistributedSampler(train), drop_last=True)
    test_loader = DataLoader(test, batch_size=4, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    best, best_state = 0.0, None
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, len(test))
        if accuracy >= best:
            best, best_state = accuracy, copy.deepcopy(model.module.state_dict())
        print(f"rank {rank} epoch {epoch} accuracy {accuracy:.4f}")
    if rank == 0:
        torch.save(best_state, "best.pt")
    print(f"rank {rank} best {best:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
