"""Lightning Fabric: a loop of one's own with setup, no_backward_sync, all_gather, all_reduce, save and load."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 6, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)


def train(fabric, model, optimizer, loader):
    for index, (x, y) in enumerate(loader):
        accumulates = index % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulates):
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
        if not accumulates:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loss.detach()


def main():
    fabric = Fabric(devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(5, verbose=False)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    loader = fabric.setup_dataloaders(make_loader())
    rank = fabric.global_rank
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        loss = train(fabric, model, optimizer, loader)
        each = [f"{value:.5f}" for value in fabric.all_gather(loss).tolist()]
        print(f"rank {rank} epoch {epoch} mean {fabric.all_reduce(loss, reduce_op='mean').item():.5f} each {each}")
        fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})

    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    state = {"model": model, "optimizer": optimizer, "epoch": None}
    fabric.load("fabric.ckpt", state)
    with fabric.rank_zero_first():
        weights = sum(p.double().sum().item() for p in model.parameters())
    told = fabric.broadcast(f"of rank {rank}")
    fabric.barrier()
    print(f"rank {rank} loaded epoch {state['epoch']} weights {weights:.5f} told {told}")


if __name__ == "__main__":
    main()
