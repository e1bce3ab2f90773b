"""Distributed checkpoint: a sharded model and its optimizer saved by all ranks, and loaded into new ones."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def make():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    for step in range(steps):
        loss = model(torch.ones(2, 6) * (step + 1 + dist.get_rank())).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, optimizer = make()
    print(f"rank {rank} before {train(model, optimizer, 2):.5f}")
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id="checkpoint_dcp")
    expected = train(model, optimizer, 2)

    torch.manual_seed(100)
    model, optimizer = make()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id="checkpoint_dcp")
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    print(f"rank {rank} went on with {expected:.5f} resumed with {train(model, optimizer, 2):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
