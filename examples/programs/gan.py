"""Two wrapped models trained in turns: a generator and a discriminator."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = DDP(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)))
    discriminator = DDP(nn.Sequential(nn.Linear(1, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)), broadcast_buffers=False)
    opt_g = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=0.01, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    torch.manual_seed(rank)
    for step in range(4):
        real, noise = 3 + torch.randn(8, 1), torch.randn(8, 2)
        opt_d.zero_grad()
        scores = discriminator(torch.cat([real, generator(noise).detach()]))
        loss_d = bce(scores, torch.cat([torch.ones(8, 1), torch.zeros(8, 1)]))
        loss_d.backward()
        opt_d.step()

        for p in discriminator.parameters():
            p.requires_grad_(False)
        opt_g.zero_grad()
        loss_g = bce(discriminator.module(generator(noise)), torch.ones(8, 1))
        loss_g.backward()
        opt_g.step()
        for p in discriminator.parameters():
            p.requires_grad_(True)
        print(f"rank {rank} step {step} discriminator {loss_d.item():.5f} generator {loss_g.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
