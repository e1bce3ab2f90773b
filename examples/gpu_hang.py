"""The script of gpu_training.py with a mistake: only rank 0 evaluates, and the evaluation wants all ranks.

ddpsim run --gpus 4 examples/gpu_hang.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, data, device):
    """The mean loss over the data, of which each rank takes its share."""
    model.eval()
    x, y = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in data.tensors)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), y)
    dist.all_reduce(loss)
    model.train()
    return loss.item() / dist.get_world_size()


def main():
    """Train two epochs, save on rank 0, load on every rank, and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    arguments = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    is_cuda = arguments.device == "cuda"
    if is_cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    dist.init_process_group("nccl" if is_cuda else "gloo", device_id=device if is_cuda else None)

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, pin_memory=is_cuda)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    if is_cuda:
        model = model.cuda()
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if is_cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(arguments.device)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(arguments.device, dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(ddp(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        if dist.get_rank() == 0:
            mean = evaluate(model, data, device)  # the others are in the next epoch by now
            print(f"epoch {epoch} loss {mean:.5f}")

    if dist.get_rank() == 0:
        torch.save(model.state_dict(), arguments.checkpoint)
    dist.barrier()
    model.load_state_dict(torch.load(arguments.checkpoint, map_location=device))
    print(f"rank {dist.get_rank()} on {next(model.parameters()).device} by {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
