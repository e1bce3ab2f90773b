"""Helpers as vision repositories share them: print is silent but on rank 0, smoothed values are synchronised."""

import builtins
import datetime
import os
import sys
from collections import defaultdict, deque

import torch
import torch.distributed as dist


def setup_for_distributed(is_master):
    builtin_print = builtins.print

    def print(*args, **kwargs):
        force = kwargs.pop("force", False)
        if is_master or force:
            builtin_print(*args, **kwargs)

    builtins.print = print


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.deque.append(value)
        self.count += 1
        self.total += value

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = int(t[0]), t[1].item()

    @property
    def median(self):
        return torch.tensor(list(self.deque)).median().item()

    @property
    def global_avg(self):
        return self.total / self.count


def reduce_dict(input_dict):
    names = sorted(input_dict)
    values = torch.stack([input_dict[name] for name in names])
    dist.all_reduce(values)
    values /= dist.get_world_size()
    return dict(zip(names, values.tolist(), strict=True))


class Tee:
    def __init__(self, stream, path):
        self.stream = stream
        self.file = open(path, "w")  # noqa: SIM115

    def write(self, text):
        self.file.write(text)
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()
        self.file.flush()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    rank = dist.get_rank()
    setup_for_distributed(rank == 0)
    sys.stdout = Tee(sys.stdout, f"out.{rank}.txt")
    meters = defaultdict(SmoothedValue)
    for step in range(5):
        losses = reduce_dict({"box": torch.tensor(1.0 + rank), "class": torch.tensor(0.5 * step)})
        meters["loss"].update(sum(losses.values()) + rank)
        print(f"step {step} {losses}")
    meters["loss"].synchronize_between_processes()
    print(f"rank {rank} median {meters['loss'].median:.3f} average {meters['loss'].global_avg:.3f}", force=True)
    sys.stdout.flush()
    print("logged", os.path.getsize(f"out.{rank}.txt") > 20, force=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
