"""torch.profiler with a schedule around training steps, and the events that it saw."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ready = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda prof: ready.append(prof.key_averages()),
        record_shapes=True,
    ) as prof:
        for _ in range(5):
            with record_function("my_step"):
                loss = model(torch.ones(4, 16) * (rank + 1)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            prof.step()
    names = {event.key: event.count for event in ready[0]}
    print(f"rank {rank} steps seen {names['my_step']} linear {names['aten::linear']} loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
