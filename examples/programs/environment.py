"""What torchrun tells a rank, as scripts read it, and what torch makes of that."""

import os
import sys

import torch
import torch.distributed as dist

NAMES = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
]


def main():
    rank = int(os.environ["RANK"])
    print(f"rank {rank}", *(f"{name}={os.environ[name]}" for name in NAMES))
    print(f"rank {rank} threads {os.environ['OMP_NUM_THREADS']} {torch.get_num_threads()}")
    print(f"rank {rank} elastic {dist.is_torchelastic_launched()} initialized {dist.is_initialized()}")
    print(f"rank {rank} address {'MASTER_ADDR' in os.environ} port {os.environ['MASTER_PORT'].isdigit()}")
    print(f"rank {rank} argv {sys.argv} name {__name__} absolute {os.path.isabs(__file__)}")
    print(f"rank {rank} path {sys.path[0] == os.path.dirname(__file__)} main {sys.modules['__main__'].main is main}")
    dist.init_process_group()
    print(f"rank {rank} backend {dist.get_backend()} local {dist.get_node_local_rank()} {dist.group.WORLD.size()}")
    dist.destroy_process_group()
    print(f"rank {rank} initialized {dist.is_initialized()}")


if __name__ == "__main__":
    main()
