"""Distributed checkpoint by async_save: training goes on while a thread of each rank writes."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoint_group = dist.new_group(backend="gloo")  # the thread that writes has collectives of its own
    torch.manual_seed(0)
    model = DDP(nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    future = None
    for step in range(4):
        loss = model(torch.ones(3, 5) * (rank + 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            if future is not None:
                future.result()
            state = {"model": model.module.state_dict(), "step": step}
            future = dcp.async_save(state, checkpoint_id=f"checkpoint_async_{step}", process_group=checkpoint_group)
    future.result()
    print(f"rank {rank} loss {loss.item():.6f}")
    state = {"model": nn.Linear(5, 5).state_dict(), "step": 0}
    dcp.load(state, checkpoint_id="checkpoint_async_2")
    print(f"rank {rank} loaded step {state['step']} weights {state['model']['weight'].sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
