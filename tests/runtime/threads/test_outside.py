"""What is none of a rank's threads stays as it is: Python's modules, other threads, locks after the run."""

import concurrent.futures._base as futures
import concurrent.futures.thread as executors
import logging
import multiprocessing
import queue
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.pool import ThreadPool

import pytest
import torch.distributed as dist

from ddpsim import Budget, simulate
from ddpsim.simulator.runtime import outside
from tests.kit.leftovers import no_thread_is_left
from tests.kit.limit_clocks import SecondsAsleep, limits_go_by
from tests.kit.rank_threads import start

both = pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
EarlyLock = threading.Lock
EARLY_QUEUE = queue.Queue()
EARLY_SIMPLE_QUEUE = queue.SimpleQueue()
BLOCKED_AT_LOCK = "made before the run or during an import, through a name bound before the run"

PLACES = [
    (threading.Thread, "start"),
    (threading.Thread, "join"),
    (threading.Thread, "is_alive"),
    (threading, "enumerate"),
    (threading, "active_count"),
    (threading, "Lock"),
    (threading, "RLock"),
    (threading, "_allocate_lock"),
    (threading.Event, "is_set"),
    (threading, "_time"),
    (threading, "_counter"),
    (queue, "SimpleQueue"),
    (queue, "time"),
    (ThreadPoolExecutor, "_counter"),
    (executors, "_global_shutdown_lock"),
    (executors, "_shutdown"),
    (futures, "DoneAndNotDoneFutures"),
    (futures, "_AcquireFutures"),
]


def use_threads(rank):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(int, range(3)))


def fail(rank):
    if rank:
        threading.Thread(target=threading.Event().wait).start()
    dist.barrier()


@pytest.mark.parametrize("program", [use_threads, fail, lambda rank: 1 / 0])
def test_python_is_as_it_was_afterwards(program):
    before = [vars(owner)[name] for owner, name in PLACES]
    hooks = threading.excepthook, list(executors._threads_queues)
    with no_thread_is_left():
        simulate(program, 2)
    assert all(vars(owner)[name] is value for (owner, name), value in zip(PLACES, before, strict=True))
    assert (threading.excepthook, list(executors._threads_queues)) == hooks


def test_threads_outside_are_let_alone_while_a_run_goes_on():
    def outside():
        ready.wait()
        lock, event, items = threading.Lock(), threading.Event(), queue.SimpleQueue()
        other = start(lambda: (event.set(), items.put(1)))
        with lock, ThreadPoolExecutor(1) as pool:
            kinds.append((type(lock), type(items), event.wait(), items.get(), pool.submit(int).result()))
        other.join()
        kinds.append(other.is_alive())
        done.set()

    def program(rank):
        if rank == 0:
            ready.set()
            done.wait()
        return rank

    kinds, ready, done = [], threading.Event(), threading.Event()
    thread = start(outside)
    result = simulate(program, 2)
    thread.join()
    assert result.returns == (0, 1)
    assert kinds == [(type(threading.Lock()), queue.SimpleQueue, True, 1, 0), False]


def test_what_a_rank_made_works_after_the_run():
    def program(rank):
        made.extend([threading.Lock(), threading.RLock(), queue.Queue(), threading.Event(), queue.SimpleQueue()])
        with made[1]:
            made[2].put("item")

    made = []
    simulate(program, 1)
    lock, rlock, items, event, simple = made
    with lock, rlock, rlock:
        assert not lock.acquire(False)
    thread = start(lambda: (items.get(), simple.put("x"), event.wait(), items.put("back")))
    assert simple.get(timeout=60) == "x"
    event.set()
    assert items.get(timeout=60) == "back"
    thread.join()
    assert not lock.locked()


def test_a_lock_made_while_a_module_is_imported_is_a_real_one(tmp_path, monkeypatch):
    (tmp_path / "makes_a_lock.py").write_text("import threading\nLOCK = threading.Lock()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank):
        import makes_a_lock

        return type(makes_a_lock.LOCK) is type(real), type(threading.Lock()) is type(real)

    real = threading.Lock()
    assert simulate(program, 2).returns == ((True, False), (True, False))


def test_a_lock_made_before_the_run_is_a_real_one(monkeypatch):
    limits_go_by(monkeypatch, SecondsAsleep())

    def program(rank):
        def hold():
            with real:
                dist.barrier()

        start(hold)
        if rank == 0:
            time.sleep(1)
            with real:
                pass

    real = threading.Lock()
    (finding,) = simulate(program, 2, budget=Budget(stuck_seconds=0.2, seconds=60)).findings
    assert finding.code == "stuck"
    assert BLOCKED_AT_LOCK in str(finding)


def take_a_lock_by_an_early_name():
    lock = EarlyLock()
    lock.acquire()
    lock.acquire(timeout=3)


def wait_for_an_early_queue():
    EARLY_QUEUE.get(timeout=3)


def wait_for_an_early_simple_queue():
    EARLY_SIMPLE_QUEUE.get(timeout=3)


@pytest.mark.parametrize(
    ("wait", "is_at_lock"),
    [
        (take_a_lock_by_an_early_name, True),
        (wait_for_an_early_queue, True),
        (wait_for_an_early_simple_queue, True),
        (lambda: select.select([], [], [], 3), False),
    ],
)
def test_who_is_stuck_at_a_lock_is_told_which_locks_are_real(wait, is_at_lock, monkeypatch):
    limits_go_by(monkeypatch, SecondsAsleep())
    (finding,) = simulate(lambda rank: wait(), 1, budget=Budget(stuck_seconds=0.2, seconds=60)).findings
    assert finding.code == "stuck"
    assert (BLOCKED_AT_LOCK in str(finding)) is is_at_lock


def test_logging_and_annotations_work_inside():
    def program(rank):
        handler = logging.StreamHandler(sys.stderr)
        handler.acquire()
        handler.release()
        return isinstance(queue.SimpleQueue(), object), isinstance(1, queue.SimpleQueue)

    assert simulate(program, 1).returns == ((True, False),)


def test_threads_of_multiprocessing_stay_outside():
    def program(rank):
        items = multiprocessing.get_context("spawn").Queue()
        items.put(rank)  # by a thread that multiprocessing starts
        value = items.get()
        items.close()
        items.join_thread()
        return value

    assert simulate(program, 2).returns == (0, 1)


def wait_for_an_item(_pool, kind):
    items = getattr(queue, kind)()
    threading.Thread(target=lambda: (time.sleep(1), items.put(7))).start()
    return items.get()


def wait_for_a_lock(_pool):
    def hold():
        with lock:
            dist.barrier()

    lock = threading.Lock()
    threading.Thread(target=hold).start()
    time.sleep(1)
    with lock:
        return 7


def wait_for_an_item_of_the_pool(pool, kind, **options):
    items = getattr(queue, kind)()
    pool.apply_async(items.put, (7,))
    return items.get(**options)


@pytest.mark.parametrize(
    "wait",
    [
        *(partial(wait_for_an_item, kind=kind) for kind in ("Queue", "SimpleQueue")),
        wait_for_a_lock,
        *(partial(wait_for_an_item_of_the_pool, kind=kind) for kind in ("Queue", "SimpleQueue")),
        partial(wait_for_an_item_of_the_pool, kind="Queue", timeout=60),
    ],
)
def test_an_open_pool_lets_threads_wait_for_each_other(wait):
    def program(rank):
        with ThreadPool(2) as pool:
            return pool.map(abs, [-1, rank]), wait(pool)

    result = simulate(program, 2, budget=Budget(seconds=60))
    assert result.findings == ()
    assert result.returns == (([1, 0], 7), ([1, 1], 7))


LEFT_BEHIND = """
import threading
from concurrent.futures import ThreadPoolExecutor
from ddpsim import Budget, simulate

never = threading.Event()

def program(rank):
    pool = ThreadPoolExecutor(1)
    pool.submit(never.wait).result()

print(*[finding.code for finding in simulate(program, 1, budget=Budget(stuck_seconds=0.2)).findings])
"""


@pytest.mark.tier("ci")
def test_the_interpreter_exits_after_a_pool_was_left_behind():
    done = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["stuck"], "")


def rest(seconds):
    time.sleep(seconds)


def wait_for_a_map(pool, seconds):
    pool.map(rest, [seconds])


def wait_for_each_result(pool, seconds):
    assert list(pool.imap(time.sleep, [seconds / 4] * 4)) == [None] * 4


def wait_for_the_threads(pool, seconds):
    pool.apply_async(time.sleep, (seconds,))
    pool.close()
    pool.join()


def wait_for_a_queue(pool, seconds):
    items = queue.SimpleQueue()
    pool.apply_async(lambda: (time.sleep(seconds), items.put(7)))
    assert items.get() == 7


WAITS = [wait_for_a_map, wait_for_each_result, wait_for_the_threads, wait_for_a_queue]


def pass_while_a_rank_waits(wait, seconds, limit, isolation, make_pool=ThreadPool):
    def program(rank):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=limit))
        if rank == 0:
            with make_pool(1) as pool:
                wait(pool, seconds)
        dist.barrier(group)

    result = simulate(program, 2, isolation=isolation, budget=Budget(seconds=60))
    found = [each for each in result.findings if each.code != "hazard.shared_process"]  # a fork of the test's process
    return [(each.code.value, each.summary.partition("] ")[2]) for each in found]


@both
@pytest.mark.parametrize("wait", WAITS)
def test_a_pool_that_takes_long_ends_the_calls_of_other_ranks_at_their_time_out(wait, isolation, monkeypatch):
    monkeypatch.setattr(outside, "_AT_FIRST_SECONDS", 0.02)
    found = pass_while_a_rank_waits(wait, 1.0, 0.4, isolation)
    assert [code for code, _ in found] == ["rank_error"] * 2
    assert found[0][1].startswith("Timed out waiting 400ms for recv operation to complete")
    assert found[1][1].startswith("Connection closed by peer")


@both
@pytest.mark.parametrize("wait", WAITS)
def test_a_pool_that_is_quick_against_the_time_out_ends_no_call(wait, isolation, monkeypatch):
    monkeypatch.setattr(outside, "_AT_FIRST_SECONDS", 0.02)
    assert pass_while_a_rank_waits(wait, 0.3, 30, isolation) == []


@pytest.mark.tier("ci")
@both
@pytest.mark.parametrize(("seconds", "limit", "codes"), [(4, 1, ["rank_error"] * 2), (1.5, 30, [])])
def test_a_pool_of_processes_is_waited_for_in_real_time(seconds, limit, codes, isolation):
    make_pool = multiprocessing.get_context("fork").Pool
    found = pass_while_a_rank_waits(wait_for_a_map, seconds, limit, isolation, make_pool)
    assert [code for code, _ in found] == codes


def test_a_pool_that_never_ends_is_stuck(monkeypatch):
    monkeypatch.setattr(outside, "_AT_FIRST_SECONDS", 0.02)

    def program(rank):
        with ThreadPool(1) as pool:
            pool.apply(never.acquire)

    never = EarlyLock()
    never.acquire()
    (finding,) = simulate(program, 1, budget=Budget(stuck_seconds=0.2, seconds=60)).findings
    never.release()
    assert (finding.code, finding.summary) == ("stuck", "rank 0 has waited for a thread of a library for 0.2 s")


@both
def test_a_wait_with_a_time_out_for_a_pool_ends_in_virtual_time(isolation, monkeypatch):
    monkeypatch.setattr(outside, "_AT_FIRST_SECONDS", 0.02)

    def program(rank):
        with ThreadPool(1) as pool, pytest.raises(multiprocessing.TimeoutError):
            pool.apply_async(time.sleep, (0.6,)).get(timeout=0.2)
        dist.barrier()

    assert simulate(program, 2, isolation=isolation, budget=Budget(seconds=60)).findings == ()
