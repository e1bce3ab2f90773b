"""Rank 0 prepares a file while the others look for it now and then; a lock file keeps two from writing at once."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


class LockFile:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return
            except FileExistsError:
                time.sleep(0.05)

    def __exit__(self, *exc):
        os.unlink(self.path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ready = Path("vocabulary.json")
    if rank == 0:
        time.sleep(0.5)
        ready.with_suffix(".part").write_text(json.dumps({"a": 1, "b": 2}))
        ready.with_suffix(".part").rename(ready)
    waited = 0
    while not ready.exists():
        time.sleep(0.1)
        waited += 1
    print(f"rank {rank} has {json.loads(ready.read_text())}, waited {waited > 0}")
    for _ in range(3):
        with LockFile("counter.lock"):
            path = Path("counter.txt")
            count = int(path.read_text()) if path.exists() else 0
            time.sleep(0.01)
            path.write_text(str(count + 1))
    dist.barrier()
    total = torch.tensor(int(Path("counter.txt").read_text()))
    dist.all_reduce(total)
    print(f"rank {rank} total {total.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
