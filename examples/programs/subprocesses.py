"""Other programs started by a rank: a version asked for, a tool run by rank 0 while the others wait."""

import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist


def python_version():
    out = subprocess.check_output([sys.executable, "-c", "import sys; print(sys.version_info[0])"], text=True)
    return int(out)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    print(f"rank {rank} python {python_version()}")
    if rank == 0:
        subprocess.run(["sh", "-c", "echo prepared > data.txt; sleep 0.1"], check=True)
    dist.barrier()
    with open("data.txt") as file:
        print(f"rank {rank} data {file.read().strip()}")
    tool = subprocess.Popen([shutil.which("cat")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer, _ = tool.communicate(f"rank {os.environ['RANK']}")
    lengths = torch.tensor(len(answer))
    dist.all_reduce(lengths)
    print(f"{answer} got {lengths.item()}, status {tool.returncode}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
