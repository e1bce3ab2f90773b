"""peft: LoRA adapters of a small network, trained under DDP. Bug: the mean loss is reduced on rank 0 only."""

import sys

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DDP(get_peft_model(network, LoraConfig(r=4, target_modules=["0", "2"])).to(device))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(8, 8, generator=generator).to(device)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if "bug" not in sys.argv:
            dist.all_reduce(mean)
        elif rank == 0:
            dist.all_reduce(mean)  # the bug
        print(f"rank {rank} step {step} loss {mean.item() / dist.get_world_size():.5f}")
    if rank == 0:
        print(f"rank 0 has an adapter of {len(get_peft_model_state_dict(model.module))} tensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
