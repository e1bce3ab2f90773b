"""sys.exit(main()) as entry points have it, with an early sys.exit(0) on every rank for --check."""

import argparse
import sys

import torch
import torch.distributed as dist


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    dist.init_process_group("gloo")
    try:
        x = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
        print(f"rank {dist.get_rank()} product {x.tolist()}")
        if args.check:
            print("checked")
            sys.exit(0)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
