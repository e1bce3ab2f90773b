"""Executors and futures: one seed, one run, however the addresses of threads and futures fall."""

import concurrent.futures._base as futures
import concurrent.futures.thread as executors
import linecache
import threading
import time
from asyncio import run, to_thread
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, explore, replay, simulate


def map_jobs(rank):
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(lambda number: (time.sleep(0.1), number)[1], range(12)))


def wait_for_all(rank):
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(int, number) for number in range(2)]
        done, left = wait(jobs)
        return [job.result() for job in done], len(left)


def take_one_by_one(rank):
    with ThreadPoolExecutor(2) as pool:
        done = wait([pool.submit(int, number) for number in range(2)]).done
        return [done.pop().result() for _ in range(2)], len(done)


def wait_for_the_first(rank):
    with ThreadPoolExecutor(2) as pool:
        pending = {pool.submit(lambda number=number: (time.sleep(number // 2), number)[1]) for number in range(6)}
        results = []
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            results.append([job.result() for job in done])
        return results


def as_they_complete(rank):
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(int, number) for number in range(5)]
        return [job.result() for job in as_completed(jobs)]


@pytest.mark.parametrize("program", [map_jobs, wait_for_all, wait_for_the_first, as_they_complete])
def test_a_seed_is_one_run_and_its_token_replays(program):
    addresses = []
    for seed in range(8):
        first = simulate(program, 1, policy="random", seed=seed)
        addresses.append([threading.Thread() for _ in range(seed % 7)])  # so that the next ones lie elsewhere
        second = simulate(program, 1, policy="random", seed=seed)
        assert first.trace.digest() == second.trace.digest()
        assert replay(program, 1, first.schedule).trace.digest() == first.trace.digest()


@pytest.mark.tier("ci")
def test_waiting_for_jobs_is_covered():
    found = explore(wait_for_all, 1, keep_going=True, budget=Budget(executions=3000))
    assert found.complete
    assert set(found.outcomes) == {"pass"}


def test_what_wait_gives_is_in_the_order_of_submission():
    assert simulate(wait_for_all, 2).returns == simulate(take_one_by_one, 2).returns == (([0, 1], 0),) * 2


def test_the_sets_of_python_are_its_own_afterwards():
    simulate(wait_for_all, 1)
    assert not {"set"} & (vars(futures).keys() | vars(executors).keys())
    with ThreadPoolExecutor(1) as pool:
        assert type(wait([pool.submit(int)]).done) is type(pool._threads) is set


def calls_in_a_pool(rank):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.barrier)
        pool.submit(dist.all_reduce if rank else dist.barrier, *[torch.ones(1)] * rank)  # found here


def calls_in_threads_of_a_loop(rank):
    async def talk():
        await to_thread(dist.barrier)
        await to_thread(dist.all_reduce if rank else dist.barrier, *[torch.ones(1)] * rank)  # found here

    run(talk())


@pytest.mark.parametrize("program", [calls_in_a_pool, calls_in_threads_of_a_loop])
def test_a_call_of_an_executor_has_the_line_that_submitted_it(program):
    (finding,) = simulate(program, 2).findings
    assert finding.code is Code.MISMATCH_OPERATION
    assert {linecache.getline(site.path, site.line).strip()[-12:] for site in finding.sites} == {"# found here"}
