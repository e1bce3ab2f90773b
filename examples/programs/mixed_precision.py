"""autocast to bfloat16 on the CPU, with no_sync while gradients are accumulated."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    torch.manual_seed(rank)
    for micro in range(8):
        is_last = (micro + 1) % ACCUMULATE == 0
        with nullcontext() if is_last else model.no_sync():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(torch.randn(8, 16))
                loss = nn.functional.cross_entropy(out.float(), torch.randint(4, (8,))) / ACCUMULATE
            scaler.scale(loss).backward()
        if is_last:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(f"rank {rank} micro {micro} dtype {out.dtype} loss {loss.item():.4f} norm {norm.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
