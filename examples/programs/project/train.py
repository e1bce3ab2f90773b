"""A package of several files, with rank and world size read when its configuration is imported; started by -m."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from .config import IS_MAIN, RANK, Config
from .data import Sines
from .models import MODELS
from .progress import count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    args = parser.parse_args()
    config = Config(epochs=args.epochs)
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    model = DistributedDataParallel(MODELS[args.model](config.hidden))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    for epoch in range(config.epochs):
        for x, y in DataLoader(Sines(), batch_size=8):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            seen = count(len(x))
        print(f"[rank {RANK}] epoch {epoch}: {loss.item():.5f} after {seen.result()} samples")
    if IS_MAIN:
        print("done", f"{model.module.net[0].weight.norm().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
