"""The script that people begin with: sampler, AdamW, clipping, a progress bar, a checkpoint."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(iterable, **kwargs):
        return iterable


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def make_dataset():
    generator = torch.Generator().manual_seed(1234)
    x = torch.randn(96, 10, generator=generator)
    y = (x.sum(dim=1) > 0).long()
    return TensorDataset(x, y)


def save(model, optimizer, epoch):
    torch.save(
        {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "checkpoint.pt"
    )


def load(model, optimizer):
    checkpoint = torch.load("checkpoint.pt", map_location="cpu")
    model.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"] + 1


@record
def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    dataset = make_dataset()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    start = load(model, optimizer) if args.resume and os.path.exists("checkpoint.pt") else 0
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(2)
        for x, y in tqdm(loader, disable=rank != 0, desc=f"epoch {epoch}"):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += torch.tensor([loss.item() * len(x), len(x)])
        scheduler.step()
        dist.all_reduce(total)
        print(f"rank {rank} epoch {epoch} loss {total[0] / total[1]:.5f} samples {int(total[1])} norm {norm:.4f}")
        if rank == 0:
            save(model, optimizer, epoch)
        dist.barrier()
    load(model, optimizer)
    print(f"rank {rank} weights {sum(p.double().sum() for p in model.parameters()):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
