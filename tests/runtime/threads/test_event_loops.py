"""asyncio in ranks: loops sleep in virtual time, and their threads are the rank's."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, simulate

ISOLATIONS = ["thread", "process"]


def run(main, isolation, world_size=2):
    """What each rank's `main` returned; it takes a rank."""
    return simulate(
        lambda rank: asyncio.run(main(rank)),
        world_size,
        isolation=isolation,
        budget=Budget(seconds=60),
    )


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_sleeps_take_virtual_time(isolation):
    async def main(rank):
        start = time.monotonic()
        await asyncio.gather(asyncio.sleep(360), asyncio.sleep(720 * (rank + 1)))
        dist.barrier()
        return round(time.monotonic() - start)

    result = run(main, isolation)
    assert result.returns == (1440, 1440)
    assert result.virtual_seconds == pytest.approx(1440)


def test_a_time_out_is_over_in_virtual_time():
    async def main(rank):
        try:
            await asyncio.wait_for(asyncio.Event().wait(), timeout=600)
        except asyncio.TimeoutError:
            return "late"

    result = run(main, "thread")
    assert (result.returns, round(result.virtual_seconds)) == (("late", "late"), 600)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_thread_of_a_loop_may_communicate(isolation):
    def reduce(rank):
        value = torch.tensor(rank + 1)
        dist.all_reduce(value)
        return value.item()

    async def main(rank):
        return await asyncio.gather(asyncio.to_thread(reduce, rank), asyncio.sleep(1, "slept"))

    assert run(main, isolation).returns == ([3, "slept"], [3, "slept"])


def test_a_thread_hands_over_to_a_loop():
    async def main(rank):
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def later():
            time.sleep(5)
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=later).start()
        await done.wait()
        return round(loop.time())

    assert run(main, "thread").returns == (5, 5)


def test_a_loop_that_nobody_wakes_is_a_deadlock():
    async def main(rank):
        if rank == 0:
            await asyncio.Event().wait()
        dist.barrier()

    assert [finding.code for finding in run(main, "process").findings] == [Code.DEADLOCK_THREADS]


@pytest.mark.tier("ci")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_subprocess_is_waited_for(isolation):
    async def main(rank):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(0.2); print(6 * 7)", stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        dist.barrier()
        return int(out), process.returncode

    assert run(main, isolation).returns == ((42, 0), (42, 0))


def test_outside_of_ranks_a_loop_is_as_it_was():
    simulate(lambda rank: None, 2)
    loop = asyncio.new_event_loop()
    try:
        assert type(loop._selector).__module__ == "selectors"
        assert loop.run_until_complete(asyncio.sleep(0.001, "slept")) == "slept"
    finally:
        loop.close()
