"""The clocks of `time` inside ranks and outside."""

import os
import pickle
import random
import subprocess
import threading
import time
from datetime import datetime, timezone
from decimal import Decimal

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from ddpsim import Budget, Verdict, replay, simulate
from ddpsim.simulator.runtime.isolation import VirtualTime
from ddpsim.simulator.runtime.isolation.virtual_time import EPOCH_SECONDS
from tests.kit.results import returned

CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
ORIGINALS = {name: getattr(time, name) for name in ("sleep", *CLOCKS)}


class Clock:
    """A virtual clock, and the one thread for which it counts."""

    def __init__(self):
        self.now = 0.0
        self.rank = 0
        self.owner = threading.get_ident()

    def is_rank_thread(self):
        return threading.get_ident() == self.owner

    def sleep(self, seconds):
        assert type(seconds) is float
        self.now += seconds


@pytest.fixture
def clock():
    clock = Clock()
    virtual_time = VirtualTime(clock.is_rank_thread, clock.sleep, lambda: (clock.rank, clock.now))
    virtual_time.install()
    yield clock
    virtual_time.uninstall()
    assert {name: getattr(time, name) for name in ORIGINALS} == ORIGINALS
    virtual_time.uninstall()


def read():
    return {name: getattr(time, name)() for name in CLOCKS}


def test_a_rank_sees_virtual_time_from_the_first_day_of_2000_on(clock):
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(EPOCH_SECONDS)) == "2000-01-01 00:00:00"
    time.sleep(2.5)
    time.sleep(1)
    assert read() == {
        "time": EPOCH_SECONDS + 3.5,
        "time_ns": (EPOCH_SECONDS * 1000 + 3500) * 1_000_000,
        "monotonic": 3.5,
        "monotonic_ns": 3_500_000_000,
        "perf_counter": 3.5,
        "perf_counter_ns": 3_500_000_000,
    }
    assert all(type(value) is (int if name.endswith("_ns") else float) for name, value in read().items())


def test_no_two_readings_of_a_clock_are_equal(clock):
    first, second = read(), read()
    assert all(
        second[name] - first[name] == pytest.approx(1000 if name.endswith("_ns") else 1e-6, rel=0.2) for name in CLOCKS
    )
    clock.rank = 1  # each has a clock of its own
    assert read() == first
    clock.now = 1.0  # past what the readings came to
    assert time.monotonic() == 1.0


class Own(datetime):
    pass


def test_a_date_of_now_follows_the_virtual_clock(clock, in_thread):
    begun = datetime.now(timezone.utc)
    assert begun.timestamp() == EPOCH_SECONDS
    time.sleep(61)
    now, utc = datetime.now(), datetime.utcnow()
    assert (now.timestamp(), type(now), type(Own.now())) == (EPOCH_SECONDS + 61, datetime, Own)
    assert (utc.minute, utc.tzinfo, pickle.loads(pickle.dumps(utc))) == (1, None, utc)
    assert time.strftime("%M:%S") == "01:01" == time.strftime("%M:%S", time.localtime())
    assert time.strftime("%Y", time.gmtime(0)) == "1970"
    assert in_thread(lambda: (datetime.now().year, time.gmtime().tm_year)) > (2020, 2020)


def test_a_clock_may_be_an_attribute_of_a_class(clock):
    time.sleep(2)
    own = type("Timer", (), {"clock": time.perf_counter, "converter": time.gmtime})()
    assert (own.clock(), own.converter(0).tm_year) == (2.0, 1970)


def test_ranks_count_from_one_real_second_and_the_clock_is_put_back():
    def program(rank):
        begun = datetime.now()
        time.sleep(3600)
        return begun.timestamp(), (datetime.now() - begun).seconds

    before = datetime.now().timestamp()
    for isolation in ("thread", "process"):
        (first, slept), *rest = simulate(program, 3, isolation=isolation, alike=True).returns
        assert (abs(first - before) < 60, first % 1 < 0.01, slept) == (True, True, 3600)
        assert all(each == (first, 3600) for each in rest)
    assert datetime.now().timestamp() - before < 60


def test_other_threads_see_real_time(clock, in_thread):
    earlier = {name: ORIGINALS[name]() for name in CLOCKS}
    seen = in_thread(read)
    later = {name: ORIGINALS[name]() for name in CLOCKS}
    assert all(earlier[name] <= seen[name] <= later[name] for name in CLOCKS)
    in_thread(lambda: time.sleep(0))
    assert clock.now == 0.0


@pytest.mark.parametrize(
    "seconds", [-1, -0.5, float("nan"), float("inf"), float("-inf"), 1e300, 2**70, "1", None, Decimal(1), 1j]
)
def test_what_sleep_refuses(clock, seconds):
    with pytest.raises((ValueError, TypeError, OverflowError)) as real:
        ORIGINALS["sleep"](seconds)
    with pytest.raises(type(real.value)) as virtual:
        time.sleep(seconds)
    assert str(virtual.value) == str(real.value)
    assert clock.now == 0.0


@pytest.mark.parametrize("seconds", [0, 0.0, -0.0, True, 10**9])
def test_what_sleep_takes(clock, seconds):
    time.sleep(seconds)
    assert clock.now == seconds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
def test_a_process_forked_from_a_rank_sees_real_time():
    def program(rank):
        child = os.fork()
        if not child:
            try:
                time.sleep(0)
                os._exit(time.time() == EPOCH_SECONDS)
            finally:
                os._exit(2)
        return os.waitpid(child, 0)[1], time.time() == EPOCH_SECONDS

    assert simulate(program, 2, alike=True).returns == ((0, True),) * 2


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.001)
        return index


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_a_data_loader_sleep_in_real_time():
    def program(rank):
        return [batch.tolist() for batch in DataLoader(Slow(), batch_size=2, num_workers=2)], time.monotonic()

    for batches, seconds in simulate(program, 2, alike=True).returns:
        assert batches == [[0, 1], [2, 3]]
        assert seconds < 1e-3  # what reading the clock takes, and no sleep of the workers


def test_a_wait_for_a_child_takes_real_time_and_keeps_a_lock_of_the_process():
    """As torch compiles: under a lock that was made before the run, waiting for a compiler with a time-out."""
    lock = threading.Lock()

    def program(rank):
        with lock:
            child = subprocess.run(["sleep", "0.1"], timeout=60, check=False)
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run(["sleep", "60"], timeout=0.01, check=False)
        return child.returncode, time.monotonic() < 1e-3

    assert returned(program, 2, alike=True, budget=Budget(stuck_seconds=5)) == ((0, True),) * 2


def read_of_rank(rank):
    return [read() for _ in range(3)]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_clocks_of_ranks_differ_unless_alike(isolation):
    """As those of processes do, also in whole seconds, and equally in every run."""
    ranks = returned(read_of_rank, 4, isolation=isolation)
    for name in CLOCKS:
        seen = [reading[name] for readings in ranks for reading in readings]
        assert len(set(seen)) == 12
        assert min(seen) >= (EPOCH_SECONDS - 0.05) * (1e9 if name.endswith("_ns") else 1) * name.startswith("time")
    assert {int(readings[0]["time"]) for readings in ranks} == {EPOCH_SECONDS - 1, EPOCH_SECONDS}
    assert ranks == returned(read_of_rank, 4, isolation=isolation)
    alike = list(returned(read_of_rank, 4, isolation=isolation, alike=True))
    assert alike == [ranks[0]] * 4


def seed_by(clock):
    def layer_drop(rank):
        layers = random.Random(clock())
        for size in range(12):
            if layers.random() > 0.5:
                dist.all_reduce(torch.ones(size + 1))

    return layer_drop


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("clock", [time.time_ns, time.perf_counter, lambda: int(time.time()), os.getpid])
def test_ranks_that_seed_by_their_own_clock_or_process_are_found(clock, isolation):
    name = getattr(clock, "__name__", "")
    program = seed_by((lambda: getattr(os if name == "getpid" else time, name)()) if name != "<lambda>" else clock)
    assert simulate(program, 2, isolation=isolation).verdict is Verdict.FAIL


def test_a_seed_that_one_rank_broadcasts_is_clean():
    def repaired(rank):
        seed = torch.tensor(time.time_ns())
        dist.broadcast(seed, src=0)
        seed_by(seed.item)(rank)

    assert simulate(repaired, 2).verdict is Verdict.PASS


def test_a_replay_has_the_clocks_of_its_run():
    found = simulate(read_of_rank, 2, alike=True)
    assert replay(read_of_rank, 2, found.schedule).returns == found.returns
    assert replay(read_of_rank, 2, simulate(read_of_rank, 2).schedule).returns != found.returns


def test_no_sleep_looks_shorter_than_asked():
    def program(rank):
        began = time.perf_counter()
        time.sleep(0.1)
        assert time.perf_counter() - began >= 0.1

    assert simulate(program, 8).verdict is Verdict.PASS
