"""What a process owns is a rank's own, which ranks that are threads would share."""

import gc
import os
import random
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, Verdict, explore, simulate, simulate_program

COUNT = {"calls": 0}


@lru_cache
def cached_rank():
    return dist.get_rank()


def own_state(rank):
    COUNT["calls"] += 1
    os.environ["OWN"] = str(rank)
    os.chdir("/" if rank else "/tmp")
    signal.signal(signal.SIGUSR1, lambda *_: COUNT.update(signal=rank))
    seen = cached_rank()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR1)
    dist.barrier()
    return COUNT["calls"], os.environ["OWN"], os.getcwd(), COUNT["signal"], seen, cached_rank()


def test_ranks_share_nothing():
    before = dict(COUNT), os.getcwd(), os.environ.get("OWN")
    returns = simulate(own_state, 3, isolation="process").returns
    assert returns == ((1, "0", "/tmp", 0, 0, 0), (1, "1", "/", 1, 1, 1), (1, "2", "/", 2, 2, 2))
    assert (dict(COUNT), os.getcwd(), os.environ.get("OWN")) == before


class Ended:
    """Notes in a file which process ends it: native threads that its end waits for would not be in a fork."""

    def __init__(self, path):
        self.path, self.itself = path, self

    def __del__(self):
        with open(self.path, "a") as file:
            file.write(f"{os.readlink('/proc/self')}\n")  # the number of a rank that is a thread is another one


@pytest.mark.parametrize("jobs", [1, 2])
def test_garbage_of_before_ends_where_it_was_made(jobs, tmp_path):
    def program(rank):
        gc.collect()
        return os.getpid()

    ended = tmp_path / "ended"
    gc.freeze()  # as a session may have done earlier: what comes later is not set aside by a run
    gc.disable()
    Ended(str(ended))
    try:
        if jobs == 1:
            simulate(program, 2, isolation="process")
        else:
            explore(program, 2, policy="random", jobs=jobs, budget=Budget(executions=4))
    finally:
        gc.enable()
    gc.collect()
    assert ended.read_text().split() == [os.readlink("/proc/self")]


def with_a_timer(rank, handler_calls, seconds=0.25, interval=0.0):
    rung = []

    def ring(*_):
        rung.append(time.monotonic())
        if handler_calls:
            dist.barrier()

    if rank == 0 or not handler_calls:
        signal.signal(signal.SIGALRM, ring)
        assert signal.setitimer(signal.ITIMER_REAL, seconds, interval) == (0, 0)
    for _ in range(10):
        if rank == 0:
            time.sleep(0.1)
        dist.all_reduce(torch.ones(1))
    return [round(each, 2) for each in rung], signal.alarm(0)


def test_a_timer_rings_in_virtual_time():
    def timed(*arguments):
        return simulate(with_a_timer, 2, args=arguments, isolation="process", alike=True)

    assert timed(False).returns == (([0.25], 0), ([0.3], 0))  # in the sleep, and after the wait for rank 0
    assert timed(False, 1000).returns == (([], 999), ([], 999))
    assert timed(False, 0.35, 0.4).returns == (([0.35, 0.75], 1), ([0.4, 0.8], 1))
    (found,) = timed(True).findings
    assert (found.code, found.ranks) == (Code.MISMATCH_OPERATION, (0, 1))


def test_what_a_module_makes_when_it_is_imported_is_the_ranks(tmp_path, monkeypatch):
    (tmp_path / "has_a_pool.py").write_text(
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "LOCK, POOL = threading.Lock(), ThreadPoolExecutor(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank):
        from has_a_pool import LOCK, POOL

        def reduce():
            with LOCK:
                total = torch.tensor(rank + 1)
                dist.all_reduce(total)
                return total.item()

        with LOCK:
            future = POOL.submit(reduce)
            dist.barrier()
        return future.result()

    assert simulate(program, 2, isolation="process").returns == (3, 3)


def test_a_module_that_pytest_would_take_for_a_test(tmp_path, monkeypatch):
    (tmp_path / "test_script.py").write_text("import sys\nassert 'pytest' not in repr(sys.meta_path)\n")
    monkeypatch.chdir(tmp_path)
    result = simulate_program(["-m", "test_script"], 1)
    assert result.verdict is Verdict.PASS, str(result)


@pytest.mark.tier("ci")
def test_a_package_is_imported_by_its_ranks_alone(tmp_path, monkeypatch):
    (tmp_path / "a_project" / "inner").mkdir(parents=True)
    (tmp_path / "a_project" / "__init__.py").write_text("import os\nRANK = os.environ['RANK']\n")
    (tmp_path / "a_project" / "inner" / "train.py").write_text(
        "import os\nfrom a_project import RANK\nassert RANK == os.environ['RANK']\n"
    )
    monkeypatch.chdir(tmp_path)
    result = simulate_program(["-m", "a_project.inner.train"], 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert "a_project" not in sys.modules


def test_functions_start_alike():
    def program(rank):
        return torch.rand(2).tolist(), random.random()

    first, second = simulate(program, 2, isolation="process").returns
    assert first == second == simulate(program, 2).returns[0]


@pytest.mark.tier("ci")
def test_a_rank_has_processes_of_its_own():
    def program(rank):
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            total = torch.tensor(sum(pool.map(abs, range(-3 - rank, 0))))
        dist.all_reduce(total)
        return total.item()

    result = simulate(program, 2, isolation="process")
    assert result.returns == (16, 16), str(result)
