"""A lock and a thread pool at the level of the module: batches are prepared and checkpoints written beside training."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
import torch.distributed as dist

LOCK = threading.Lock()
EXECUTOR = ThreadPoolExecutor(max_workers=2)
counts = {"loaded": 0, "saved": 0}


def load(index):
    with LOCK:
        counts["loaded"] += 1
    return torch.full((4,), float(index))


def save(step, value):
    torch.save(value, f"step{step}.rank{dist.get_rank()}.pt")
    with LOCK:
        counts["saved"] += 1
    return step


def prefetch(batches, target):
    for index in batches:
        target.put(load(index))
    target.put(None)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ready = queue.Queue(maxsize=2)
    thread = threading.Thread(target=prefetch, args=(range(rank, 10, 2), ready), daemon=True)
    thread.start()
    saves = []
    step = 0
    while (batch := ready.get()) is not None:
        dist.all_reduce(batch)
        saves.append(EXECUTOR.submit(save, step, batch))
        step += 1
    thread.join()
    finished = sorted(future.result() for future in as_completed(saves))
    total = sum(EXECUTOR.map(lambda i: torch.load(f"step{i}.rank{rank}.pt").sum().item(), finished))
    print(f"rank {rank} steps {finished} total {total} counts {counts}")
    EXECUTOR.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
