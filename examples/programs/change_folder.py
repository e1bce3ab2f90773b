"""os.chdir into a folder of the rank's own, as experiment managers do, and relative paths there."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    start = Path.cwd()
    folder = Path("outputs") / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.umask(0o077)
    os.environ["EXPERIMENT"] = f"run-{rank}"
    dist.barrier()
    torch.save({"rank": rank}, "state.pt")
    Path("metrics.json").write_text(json.dumps({"rank": rank, "name": os.environ["EXPERIMENT"]}))
    dist.barrier()
    other = (rank + 1) % world_size
    metrics = json.loads((start / "outputs" / f"rank{other}" / "metrics.json").read_text())
    print(f"rank {rank} in {Path.cwd().name} has {sorted(os.listdir())}, sees {metrics}")
    assert torch.load("state.pt")["rank"] == rank
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
