"""TORCH_DISTRIBUTED_DEBUG=INFO set by the script, with faulthandler and anomaly detection on."""

import faulthandler
import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

faulthandler.enable()
dist.set_debug_level_from_env()
torch.autograd.set_detect_anomaly(True)
torch.use_deterministic_algorithms(True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    loss = model(torch.ones(2, 4) * (rank + 1)).sum()
    loss.backward()
    print(f"rank {rank} debug {dist.get_debug_level().name} loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
