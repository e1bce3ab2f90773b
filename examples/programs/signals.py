"""Preemption: a handler for SIGUSR1 sets a flag, the flag is reduced, and all ranks stop at the same step."""

import os
import signal
import threading

import torch
import torch.distributed as dist

stop_requested = threading.Event()


def request_stop(signum, frame):
    print(f"rank {os.environ['RANK']} got {signal.Signals(signum).name}")
    stop_requested.set()


def main():
    signal.signal(signal.SIGUSR1, request_stop)
    signal.signal(signal.SIGTERM, request_stop)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        flag = torch.tensor(int(stop_requested.is_set()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            break
    print(f"rank {rank} stopped at step {step}")
    if rank == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    dist.barrier()
    print(f"rank {rank} requested {stop_requested.is_set()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
