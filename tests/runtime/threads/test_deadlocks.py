"""Threads that wait for good: who waits for what, who has it, the cycle, the advice; and the repaired twins pass."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Verdict, explore, simulate
from tests.kit.rank_threads import start


def found(result):
    """The code, the ranks and the lines of the only finding."""
    (finding,) = result.findings
    assert finding.where
    lines = [line for line in str(finding).splitlines() if not line.startswith("  where ")]
    return finding.code.value, finding.ranks, lines


def lock_both(first, second):
    with first:
        time.sleep(1)
        with second:
            pass


def in_other_order(rank):
    a, b = threading.Lock(), threading.Lock()
    threads = [start(lock_both, a, b, name="one"), start(lock_both, b, a, name="two")]
    for thread in threads:
        thread.join()
    dist.barrier()


def test_locks_in_other_order_are_a_cycle_within_the_rank():
    result = simulate(in_other_order, 2)
    code, ranks, lines = found(result)
    assert (code, ranks, result.verdict) == ("deadlock.threads", (0, 1), Verdict.FAIL)
    assert lines[1].startswith('  rank 0                waits for the end of thread "one"')
    assert lines[2].startswith('  rank 0, thread "one"  waits for a lock')
    assert lines[2].endswith('held by thread "two"')
    assert lines[3].endswith('held by thread "one"')
    assert '  cycle   thread "one" -> thread "two" -> thread "one"' in lines
    assert any("lock order inversion" in line for line in lines)
    assert "  try     take the locks in one order everywhere, or use one lock instead" in lines
    assert "test_deadlocks.py" in str(result)


def test_the_cycle_is_found_by_exploring_and_the_repair_is_covered():
    def program(rank, is_repaired):
        a, b = threading.Lock(), threading.Lock()

        def both(first, second):
            with first, second:
                pass

        thread = start(both, a, b, name="other")
        both(*((a, b) if is_repaired else (b, a)))
        thread.join()

    broken = explore(program, 1, args=(False,), keep_going=True)
    assert (broken.executions, dict(broken.outcomes)) == (3, {"pass": 2, "fail  deadlock.threads rank 0": 1})
    repaired = explore(program, 1, args=(True,), keep_going=True)
    assert (repaired.executions, repaired.complete, dict(repaired.outcomes)) == (2, True, {"pass": 2})


def test_a_lock_that_its_own_thread_has():
    def program(rank):
        lock = threading.Lock()
        with lock:
            if rank == 1:
                lock.acquire()
        dist.barrier()

    code, ranks, lines = found(simulate(program, 2))
    assert (code, ranks) == ("deadlock.threads", (1,))
    assert lines[2].endswith("held by itself")
    assert "  cycle   the main thread -> the main thread" in lines
    assert any("threading.RLock" in line for line in lines)


def test_a_thread_that_is_joined_by_who_has_its_lock():
    def program(rank):
        lock = threading.Lock()
        with lock:
            start(lambda: lock.acquire(), name="worker").join()

    code, ranks, lines = found(simulate(program, 1))
    assert (code, ranks) == ("deadlock.threads", (0,))
    assert lines[2].endswith("held by the main thread")
    assert '  cycle   the main thread -> thread "worker" -> the main thread' in lines
    assert any(line.startswith("  try     release the lock before waiting for a thread") for line in lines)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (lambda: threading.Event().wait(), "an event"),
        (lambda: queue.Queue().get(), "an item of a queue"),
        (lambda: queue.SimpleQueue().get(), "an item of a queue"),
        (lambda: threading.Semaphore(0).acquire(), "a semaphore"),
        (lambda: threading.Barrier(2).wait(), "a barrier of threads"),
    ],
    ids=["event", "queue", "simple-queue", "semaphore", "barrier"],
)
def test_what_nobody_is_left_to_do(wait, words):
    def program(rank):
        if rank == 0:
            wait()
        dist.all_reduce(torch.ones(2))

    code, ranks, lines = found(simulate(program, 2))
    assert (code, ranks) == ("deadlock.threads", (0,))
    assert lines[1].startswith(f"  rank 0  waits for {words} ")
    assert "test_deadlocks.py" in lines[1]
    assert lines[1].endswith("no other thread is left")
    assert lines[2].startswith("  rank 1  waits in all_reduce #0")


def test_threads_that_wait_for_each_others_items():
    def program(rank):
        requests, answers = queue.Queue(), queue.Queue()

        def serve():
            while True:
                answers.put(requests.get())

        start(serve, name="server", daemon=True)
        requests.put(1)
        answers.get()
        answers.get()

    code, ranks, lines = found(simulate(program, 3))
    assert (code, ranks) == ("deadlock.threads", (0, 1, 2))
    assert '  cycle   the main thread -> thread "server" -> the main thread' in lines


def test_a_job_of_an_executor_that_waits_for_another_one():
    def program(rank, workers):
        with ThreadPoolExecutor(workers) as pool:
            return pool.submit(lambda: pool.submit(int).result()).result()

    code, _, lines = found(simulate(program, 1, args=(1,)))
    assert code == "deadlock.threads"
    assert lines[2].startswith('  rank 0, thread "ThreadPoolExecutor-0_0"  waits for a future')
    assert simulate(program, 1, args=(2,)).returns == (0,)


def test_ranks_that_wait_for_each_other_by_way_of_their_threads():
    """Rank 0 joins its checkpoint first, rank 1 makes its own call first, so no rank does what the other waits for."""

    def program(rank):
        group = dist.new_group([0, 1])
        checkpoint = start(lambda: go.wait() and dist.barrier(group), name="checkpoint")
        if rank == 0:
            go.set()
            checkpoint.join()
        dist.all_reduce(torch.ones(2))
        go.set()
        checkpoint.join()

    go = _EventOfEachRank()
    code, ranks, lines = found(simulate(program, 2))
    assert (code, ranks) == ("deadlock.cycle", (0, 1))
    assert lines[1].startswith('  rank 0                       waits for the end of thread "checkpoint"')
    assert lines[2].startswith('  rank 0, thread "checkpoint"  waits in barrier #1  group "1"')
    assert "  cycle   0 -> 1 -> 0" in lines


class _EventOfEachRank:
    """An event that each rank makes for itself when it first uses it."""

    def __init__(self):
        self._events = {}

    def _own(self):
        return self._events.setdefault(dist.get_rank(), threading.Event())

    def set(self):
        self._own().set()

    def wait(self):
        return self._own().wait()


def test_a_thread_waits_for_a_rank_that_is_over():
    def program(rank):
        group = dist.new_group([0, 1])
        if rank == 0:
            start(dist.barrier, group, name="checkpoint")

    code, ranks, lines = found(simulate(program, 2))
    assert (code, ranks) == ("deadlock.missing_rank", (1,))
    assert lines[1].rstrip().endswith('is over, and waits for the end of thread "checkpoint"')
    assert lines[2].startswith('  rank 0, thread "checkpoint"  waits in barrier #1')
    assert lines[3].startswith("  rank 1 ")


def test_a_thread_that_only_beats_hides_no_deadlock():
    def program(rank, count):
        def beat():
            for _ in range(count):
                time.sleep(60)
            done.append(rank)

        start(beat, name="heartbeat", daemon=True)
        if rank == 0:
            dist.barrier()

    done = []
    code, ranks, lines = found(simulate(program, 2, args=(1_000_000,), budget=Budget(steps=2_000)))
    assert (code, ranks, done) == ("deadlock.missing_rank", (1,), [])
    assert lines[1].startswith("  rank 0  waits in barrier #0")


@pytest.mark.parametrize("beats", [200, 1_700])
def test_a_thread_that_beats_and_then_helps_is_waited_for_as_long_as_the_group_waits(beats):
    def program(rank):
        def beat():
            for _ in range(beats):
                time.sleep(1)
            is_done.set()

        is_done = threading.Event()
        if rank == 0:
            start(beat, name="heartbeat", daemon=True)
            is_done.wait()
        dist.barrier()

    assert simulate(program, 2).verdict is Verdict.PASS


def leaves_with_poller(rank):
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    start(store.get, f"stop{rank}", name="poller", daemon=True)
    for _ in range(3 - (rank == 1)):
        dist.all_reduce(torch.ones(1))


def each_waits_for_a_key_first(rank, key="ready{}"):
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    start(store.get, f"stop{rank}", name="poller", daemon=True)
    store.get(key.format(1 - rank))
    store.set(key.format(rank), "1")


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_a_daemon_that_waits_for_a_key_has_no_finding_of_its_own(isolation):
    def kinds(program):
        result = simulate(program, 2, isolation=isolation)
        return [(finding.code.value, finding.ranks) for finding in result.findings]

    assert kinds(leaves_with_poller) == [("deadlock.missing_rank", (1,))]
    assert kinds(each_waits_for_a_key_first) == [("deadlock.cycle", (0, 1))]
    assert kinds(partial(each_waits_for_a_key_first, key="go")) == [("deadlock.missing_rank", (0, 1))]


# More beats than may be alone with the clock, were nobody else to wait for it.
def sleep_long(stop):
    time.sleep(11_000)


def join_a_thread_that_sleeps_long(stop):
    start(time.sleep, 11_000, name="slow").join()


def wait_long(stop):
    threading.Event().wait(11_000)


@pytest.mark.parametrize("wait", [sleep_long, join_a_thread_that_sleeps_long, wait_long])
def test_a_thread_that_beats_does_not_make_a_slow_program_a_deadlock(wait):
    def program(rank):
        def beat():
            while not stop.wait(1.0):
                pass

        stop = threading.Event()
        start(beat, name="heartbeat")
        wait(stop)
        stop.set()

    result = simulate(program, 1)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.virtual_seconds == 11_000.0
