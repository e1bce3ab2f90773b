"""The end of a run is said once: no traceback of ddpsim through `__del__`, generators, tasks or exit handlers."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate, simulate_program


class Guard:
    def __del__(self):
        dist.barrier()


def collective_in_del(rank, is_repaired):
    guard = Guard()
    if rank == 1 and not is_repaired:
        guard.itself = guard
    del guard
    gc.collect() if is_repaired else gc.disable()
    dist.all_reduce(torch.ones(1))
    gc.enable()


def batches():
    try:
        yield from range(3)
    finally:
        dist.barrier()


def generator_left_open(rank, is_repaired):
    remaining = batches()
    for batch in remaining:
        if rank == 1 and batch == 1 and not is_repaired:
            break
    dist.all_reduce(torch.ones(1))
    remaining.close()


def reduce(number):
    dist.all_reduce(torch.tensor([float(number)]))


async def gather(count):
    loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    await asyncio.gather(*(loop.run_in_executor(executor, reduce, number) for number in range(count)))


def gathers(rank, is_repaired):
    asyncio.run(gather(4 if is_repaired else 4 - rank))


async def reduce_later(number):
    reduce(number)
    await asyncio.sleep(0.1)


async def start_tasks(count):
    tasks = [asyncio.create_task(reduce_later(number)) for number in range(count)]
    await asyncio.sleep(0.5)
    for task in tasks:
        await task


def tasks(rank, is_repaired):
    asyncio.run(start_tasks(4 if is_repaired else 4 - rank))


@pytest.mark.parametrize(
    ("program", "isolation"),
    [
        (generator_left_open, "thread"),
        (gathers, "thread"),
        (tasks, "thread"),
        pytest.param(collective_in_del, "process", marks=pytest.mark.tier("ci")),  # in a thread it outlives the run
        pytest.param(generator_left_open, "process", marks=pytest.mark.tier("ci")),
        pytest.param(tasks, "process", marks=pytest.mark.tier("ci")),
    ],
)
def test_a_run_that_ends_early_leaves_no_traceback(program, isolation, capfd, caplog):
    caplog.set_level("ERROR")
    result = simulate(program, 2, args=(False,), isolation=isolation)
    assert result.findings[0].code.value in ("mismatch.operation", "deadlock.missing_rank")
    gc.collect()
    assert "RankUnwound" not in "".join(capfd.readouterr())
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
    assert simulate(program, 2, args=(True,), isolation=isolation).findings == ()


AT_EXIT = """\
import atexit, os, torch, torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "0" or {is_repaired}:
    atexit.register(dist.barrier)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.tier("ci")
def test_an_exit_handler_that_waits_for_ever_leaves_none(tmp_path, capfd):
    for is_repaired in (False, True):
        (tmp_path / "own.py").write_text(AT_EXIT.format(is_repaired=is_repaired), encoding="utf-8")
        result = simulate_program([str(tmp_path / "own.py")], 2)
        assert [finding.code.value for finding in result.findings] == ["deadlock.missing_rank"] * (not is_repaired)
    assert "Traceback" not in "".join(capfd.readouterr())
