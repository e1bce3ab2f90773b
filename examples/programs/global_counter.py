"""State at the level of the module: a step counter, a list of losses, a cache."""

import torch
import torch.distributed as dist

global_step = 0
history = []
_cache = {}


def train_step(value):
    global global_step
    global_step += 1
    history.append(value.item())
    return global_step


def cached_positions(length):
    if length not in _cache:
        _cache[length] = torch.arange(length) * (dist.get_rank() + 1)
    return _cache[length]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for i in range(4):
        value = cached_positions(3 + i % 2).sum().float()
        dist.all_reduce(value)
        step = train_step(value)
        if step % 2 == 0:
            print(f"rank {rank} step {step} mean {sum(history) / len(history):.3f}")
    steps = torch.tensor(global_step)
    dist.all_reduce(steps)
    print(f"rank {rank} steps of all {steps.item()} cached {len(_cache)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
