"""After a run the process is as it was, whatever ranks that are threads did to it."""

import logging
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ddpsim import Verdict, simulate


def state():
    return {
        "folder": os.getcwd(),
        "handlers": list(logging.root.handlers),
        "level": logging.root.level,
        "disabled": logging.root.manager.disable,
        "recursion limit": sys.getrecursionlimit(),
        "excepthook": threading.excepthook,
        "filters": list(warnings.filters),
        "debug level": dist.get_debug_level(),
    }


def disturb(folder):
    os.chdir(folder)
    logging.root.addHandler(logging.FileHandler(folder / "log"))
    logging.root.setLevel(logging.DEBUG)
    logging.disable(logging.ERROR)
    sys.setrecursionlimit(sys.getrecursionlimit() + 1000)
    threading.excepthook = print
    warnings.simplefilter("ignore")
    dist.set_debug_level(dist.DebugLevel.DETAIL)


@pytest.mark.parametrize("raises", [False, True])
def test_what_ranks_change_is_put_back(raises, tmp_path):
    def program(rank):
        disturb(tmp_path)
        if raises:
            raise ValueError(rank)

    before = state()
    simulate(program, 2)
    assert state() == before


def test_a_folder_that_is_gone_is_no_error(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def program(rank):
        os.chdir(tmp_path)
        if folder.exists():
            folder.rmdir()

    simulate(program, 1)
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize("had_threads", [False, True])
def test_an_executor_of_the_caller_works_afterwards_and_each_run_comes_to_the_same(had_threads):
    with ThreadPoolExecutor(2) as pool:
        if had_threads:
            assert pool.submit(int).result(timeout=60) == 0

        def program(rank):
            pool.submit(int)
            dist.barrier()

        first, second = (simulate(program, 2) for _ in range(2))
        assert [first.verdict, second.verdict] == [Verdict.PASS] * 2
        assert first.trace.digest() == second.trace.digest()
        assert pool.submit(lambda: 4).result(timeout=60) == 4


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_an_executor_that_ranks_share_outlives_the_rank_that_gave_it_work_first(policy):
    with ThreadPoolExecutor(1) as pool:

        def program(rank):
            first = pool.submit(lambda: rank).result()
            if rank > 0:
                time.sleep(1)  # rank 0 ends, and waits for its threads as a process does
            return first, pool.submit(lambda: 10 + rank).result()

        assert simulate(program, 3, policy=policy).returns == ((0, 10), (1, 11), (2, 12))
        assert pool.submit(lambda: "outside").result() == "outside"


def test_a_rank_that_shuts_the_callers_executor_down_does_so_for_itself():
    with ThreadPoolExecutor(1) as pool:

        def program(rank):
            if rank == 0:
                pool.shutdown()
            return pool.submit(int, rank).result()

        result = simulate(program, 2)
        assert {rank: str(error) for rank, error in result.errors.items()} == {
            0: "cannot schedule new futures after shutdown"
        }
        assert result.returns[1] == 1
        assert pool.submit(int, 7).result() == 7
