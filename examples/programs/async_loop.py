"""asyncio around training: a heartbeat that sleeps, a loader that awaits, a blocking step in a thread."""

import asyncio

import torch
import torch.distributed as dist

beats = 0


async def heartbeat(done):
    global beats
    while not done.is_set():
        beats += 1
        await asyncio.sleep(0.01)


async def batches(count):
    for index in range(count):
        await asyncio.sleep(0.02)
        yield torch.full((2,), float(index + dist.get_rank()))


def reduce(batch):
    dist.all_reduce(batch)
    return batch.sum().item()


async def main():
    dist.init_process_group("gloo")
    done = asyncio.Event()
    beating = asyncio.create_task(heartbeat(done))
    results = []
    async for batch in batches(3):
        results.append(reduce(batch))
    results.append(await asyncio.to_thread(reduce, torch.ones(2)))
    results.append(await asyncio.wait_for(asyncio.sleep(0.01, result=7), timeout=5))
    done.set()
    await beating
    print(f"rank {dist.get_rank()} results {results} beats {beats > 2}")
    dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
