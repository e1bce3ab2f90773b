"""What Python's threading and queue promise holds between the threads of a rank, under every policy."""

import pickle
import queue
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from ddpsim import explore, simulate
from tests.kit.rank_threads import beside, start

SCHEDULES = [("round_robin", 0), *(("random", seed) for seed in range(8)), ("pct", 1)]


def returned(program):
    """What `program`, which takes nothing, returns on both of two ranks under many schedules: always the same."""
    results = [simulate(lambda rank: program(), 2, policy=policy, seed=seed) for policy, seed in SCHEDULES]
    for result in results:
        result.raise_for_verdict()
        assert not result.findings
    (value,) = {repr(value) for result in results for value in result.returns}
    return value


def a_lock_keeps_others_out():
    lock, counts = threading.Lock(), [0, 0]

    def add():
        for _ in range(3):
            with lock:
                before = counts[0]
                time.sleep(1)
                counts[0] = before + 1

    began = time.monotonic()
    beside(add, add)
    return counts[0], time.monotonic() - began


def test_a_lock_of_a_rank_without_other_threads_is_no_step():
    def program(rank):
        with threading.Lock():
            return rank

    assert explore(program, 2, policy="dfs").executions == 2  # which rank begins


def test_without_the_lock_counts_are_lost():
    def program(rank):
        counts = [0]

        def add():
            before = counts[0]
            time.sleep(1)
            counts[0] = before + 1

        beside(add, add)
        return counts[0]

    assert simulate(program, 1).returns == (1,)


def a_lock_that_is_taken_is_refused_or_timed_out():
    lock, seen = threading.Lock(), []

    def other():
        seen.append((lock.locked(), lock.acquire(False), lock.acquire(blocking=False)))
        began = time.monotonic()
        seen.append((lock.acquire(timeout=2.5), time.monotonic() - began >= 2.5))
        seen.append(lock.acquire(timeout=100))

    with lock:
        thread = start(other)
        time.sleep(10)
    thread.join()
    return seen, lock.locked()


def a_lock_is_given_back_by_whoever_likes_and_never_twice():
    lock = threading.Lock()
    assert lock.acquire()
    beside(lock.release)
    with pytest.raises(RuntimeError, match=r"^release unlocked lock$"):
        lock.release()
    with pytest.raises(ValueError, match=r"can't specify a timeout"):
        lock.acquire(False, 1)
    with pytest.raises(ValueError, match=r"timeout value must be"):
        lock.acquire(True, -2)
    with pytest.raises(OverflowError):
        lock.acquire(True, 1e200)
    return repr(lock)


def test_who_asks_first_gets_the_lock_first():
    def program(rank):
        lock, order = threading.Lock(), []

        def take(number):
            time.sleep(number)
            with lock:
                order.append(number)

        with lock:
            threads = [start(take, number) for number in (3, 1, 2)]
            time.sleep(10)
        for thread in threads:
            thread.join()
        return order

    assert {repr(simulate(program, 1, policy="random", seed=seed).returns) for seed in range(8)} == {"([1, 2, 3],)"}


def an_rlock_counts(make=None):
    lock, seen = (make or threading.RLock)(), []

    def other():
        seen.append(lock.acquire(False))
        with pytest.raises(RuntimeError, match=r"un-acquired"):
            lock.release()
        with lock, lock:
            seen.append("mine")

    with lock:
        with lock:
            thread = start(other)
            time.sleep(1)
        seen.append("still mine")
    thread.join()
    return seen


def an_rlock_of_a_class_of_its_own_counts():
    class Derived(type(threading.RLock())):  # as joblib does where RLock lacks something
        pass

    return an_rlock_counts(Derived)


def a_condition_is_notified():
    condition, items, taken = threading.Condition(), [], []

    def take():
        with condition:
            assert condition.wait_for(lambda: items, timeout=100)
            taken.append(items.pop())

    threads = [start(take) for _ in range(3)]
    time.sleep(1)
    with condition:
        items.append("first")
        condition.notify()
    time.sleep(1)
    one = list(taken)
    with condition:
        items.extend("ab")
        condition.notify_all()
    for thread in threads:
        thread.join()
    with condition:
        return one, sorted(taken), condition.wait(3), condition.wait(0)


def an_event_is_waited_for():
    event, seen = threading.Event(), []

    def other():
        seen.append(event.wait(5))
        seen.append(event.wait())

    thread = start(other)
    time.sleep(7)
    event.set()
    thread.join()
    is_set = event.is_set()
    event.clear()
    return seen, is_set, event.is_set(), event.wait(1)


@pytest.mark.parametrize("policy", ["round_robin", "random", "pct"])
@pytest.mark.parametrize(
    "look",
    [
        lambda event, thread, items, future: event.is_set(),
        lambda event, thread, items, future: not thread.is_alive(),
        lambda event, thread, items, future: not items.empty(),
        lambda event, thread, items, future: future.done(),
    ],
    ids=["event", "thread", "queue", "future"],
)
def test_a_loop_that_only_looks_lets_the_others_run(look, policy):
    def program(rank):
        event, items = threading.Event(), queue.Queue()

        def act():
            event.set()
            items.put(1)

        with ThreadPoolExecutor(1) as pool:
            thread = start(act)
            future = pool.submit(lambda: 1)
            while not look(event, thread, items, future):
                pass
            thread.join()
        return "done"

    assert simulate(program, 2, policy=policy).returns == ("done", "done")


def semaphores_and_barriers():
    semaphore, bounded = threading.Semaphore(2), threading.BoundedSemaphore(1)
    barrier, inside, most, places = threading.Barrier(3), [], [], []

    def enter():
        with semaphore:
            inside.append(1)
            most.append(len(inside))
            time.sleep(1)
            inside.pop()
        places.append(barrier.wait())

    beside(enter, enter, enter)
    with pytest.raises(ValueError, match=r"too many times"):
        bounded.release()
    assert bounded.acquire(timeout=1)
    assert not bounded.acquire(timeout=1)
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(timeout=2)
    return max(most), sorted(places), barrier.broken


@pytest.mark.parametrize("make", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue])
def test_queues_hand_items_over(make):
    def program():
        items, taken = getattr(queue, make.__name__)(), []

        def take():
            while (item := items.get()) is not None:
                taken.append(item)
                if hasattr(items, "task_done"):
                    items.task_done()
                if len(taken) == 3:
                    return

        thread = start(take)
        for item in (1, 2, 3):
            items.put(item)
        thread.join()
        with pytest.raises(queue.Empty):
            items.get_nowait()
        began = time.monotonic()
        with pytest.raises(queue.Empty):
            items.get(timeout=4)
        return sorted(taken), time.monotonic() - began >= 4, items.empty(), items.qsize()

    assert returned(program) == "([1, 2, 3], True, True, 0)"


def test_waits_for_items_have_an_end_in_the_trace():
    def program(rank):
        items = queue.SimpleQueue()
        start(lambda: items.put(1)).join(items.get())
        with pytest.raises(queue.Empty):
            items.get(timeout=2)

    told = [f"{event.kind.name} {event.text}" for event in simulate(program, 1).trace if " an item" in f" {event.text}"]
    waits = ["WAIT an item of a queue", "DONE an item of a queue"] * 2
    assert told == [*waits[:3], f"{waits[3]} timed out"]


def a_queue_that_is_full_holds_the_producer_up():
    items, log = queue.Queue(2), []

    def produce():
        for item in range(5):
            items.put(item)
        log.append(time.monotonic())

    thread = start(produce)
    time.sleep(3)
    with pytest.raises(queue.Full):
        items.put("more", timeout=1)
    taken = []
    for _ in range(5):
        taken.append(items.get())
        items.task_done()
    items.join()
    thread.join()
    return taken, log[0] >= 4


def a_timer_runs_in_virtual_time_and_can_be_cancelled():
    rung = []
    began = time.monotonic()
    timers = [threading.Timer(delay, lambda: rung.append(round(time.monotonic() - began, 1))) for delay in (30, 20)]
    never = threading.Timer(25, lambda: rung.append("never"))
    for timer in (*timers, never):
        timer.start()
    never.cancel()
    for timer in (*timers, never):
        timer.join()
    return rung


def executors_run_what_they_are_given():
    with ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
        squares = list(pool.map(lambda number: number * number, range(5)))
        failing = pool.submit(int, "no number")
        slow = pool.submit(time.sleep, 9)
        done, not_done = wait([failing, slow], return_when=FIRST_COMPLETED)
        in_order = sorted(future.result() for future in as_completed([pool.submit(pow, 2, n) for n in range(4)]))
        with pytest.raises(FutureTimeoutError):
            slow.result(timeout=1)
    assert (done, not_done) == ({failing}, {slow})
    with pytest.raises(RuntimeError, match=r"cannot schedule new futures after shutdown"):
        pool.submit(int)
    return squares, type(failing.exception()).__name__, in_order, slow.done()


def what_is_local_to_a_thread_stays_there():
    own, seen = threading.local(), []
    own.value = "main"
    beside(lambda: seen.append(hasattr(own, "value")))
    return own.value, seen


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (a_lock_keeps_others_out, "(6, 6.0)"),
        (a_lock_that_is_taken_is_refused_or_timed_out, "([(True, False, False), (False, True), True], True)"),
        (a_lock_is_given_back_by_whoever_likes_and_never_twice, repr("<unlocked lock of a simulated rank>")),
        (an_rlock_counts, "[False, 'still mine', 'mine']"),
        (an_rlock_of_a_class_of_its_own_counts, "[False, 'still mine', 'mine']"),
        (a_condition_is_notified, "(['first'], ['a', 'b', 'first'], False, False)"),
        (an_event_is_waited_for, "([False, True], True, False, False)"),
        (semaphores_and_barriers, "(2, [0, 1, 2], True)"),
        (a_queue_that_is_full_holds_the_producer_up, "([0, 1, 2, 3, 4], True)"),
        (a_timer_runs_in_virtual_time_and_can_be_cancelled, "[20.0, 30.0]"),
        (executors_run_what_they_are_given, "([0, 1, 4, 9, 16], 'ValueError', [1, 2, 4, 8], True)"),
        (what_is_local_to_a_thread_stays_there, "('main', [False])"),
    ],
)
def test_what_python_promises_holds(program, expected):
    assert returned(program) == expected


def test_what_makes_locks_is_pickled_by_its_name():
    """multiprocessing pickles it for the process of a manager that it spawns."""
    makers = (("threading", "Lock"), ("threading", "RLock"), ("queue", "SimpleQueue"))

    def program():
        found = [getattr(sys.modules[module], name) for module, name in makers]
        return [pickle.loads(pickle.dumps(each)) is each for each in found]

    assert returned(program) == "[True, True, True]"
