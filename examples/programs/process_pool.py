"""Other processes of a rank's own: a pool that prepares data, an executor, a queue."""

import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist


def square(x):
    return x * x


def produce(queue, rank):
    for i in range(3):
        queue.put(10 * rank + i)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with mp.Pool(2) as pool:
        squares = pool.map(square, range(rank, rank + 4))
    value = torch.tensor(squares)
    dist.all_reduce(value)
    print(f"rank {rank} squares {squares} reduced {value.tolist()}")

    with ProcessPoolExecutor(max_workers=2, mp_context=mp.get_context("fork")) as executor:
        print(f"rank {rank} executor {list(executor.map(square, [rank, 5]))}")

    context = mp.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=produce, args=(queue, rank))
    process.start()
    items = [queue.get(timeout=30) for _ in range(3)]
    process.join()
    print(f"rank {rank} items {items} exit code {process.exitcode}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
