"""DPOR over the threads of ranks: counts worked out by hand, and the outcomes that a full search finds."""

import queue
import threading
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, Verdict, explore, replay, simulate
from ddpsim.simulator.exploration.explorer import outcome_of_result
from tests.exploration.programs import store
from tests.kit.rank_threads import start
from tests.kit.rows import rows

PLENTY = Budget(executions=20_000, seconds=600)


def explored(program, world_size, **options):
    exploration = explore(program, world_size, budget=PLENTY, keep_going=True, **options)
    assert exploration.complete
    return exploration


def beside(function, own, *others):
    """Call `function` with `own` on the rank's main thread, and with each of `others` on a thread."""
    threads = [start(function, other) for other in others]
    function(own)
    for thread in threads:
        thread.join()


def one_group(rank):
    """Each thread makes a call of another shape: they fit if both ranks take them in one order."""
    beside(lambda size: dist.all_reduce(torch.ones(size)), 1, 3)


def group_of_each(rank):
    groups = {size: dist.new_group([0, 1]) for size in (1, 3)}
    beside(lambda size: dist.all_reduce(torch.ones(size), group=groups[size]), 1, 3)


def one_queue(rank):
    """The repair: one thread makes the calls, in the order in which they are put into its queue."""
    sizes = queue.SimpleQueue()

    def call():
        while size := sizes.get():
            dist.all_reduce(torch.ones(size))

    thread = start(call)
    for size in (1, 3, 0):
        sizes.put(size)
    thread.join()


def lock_taken(rank, *names):
    lock, order = threading.Lock(), []

    def take(name):
        with lock:
            order.append(name)

    beside(take, *names)
    return "".join(order)


def tried(rank):
    lock, seen = threading.Lock(), []

    def use(is_trying):
        if is_trying:
            seen.append(lock.acquire(False))
            if seen[-1]:
                lock.release()
        else:
            with lock:
                dist.get_world_size()

    beside(use, False, True)
    return seen


def looked_at(rank):
    event, seen = threading.Event(), []
    beside(lambda is_looking: seen.append(event.is_set()) if is_looking else event.set(), False, True)
    return seen


def items_of_a_queue(rank):
    items, taken = queue.Queue(), []
    beside(lambda is_main: [items.put(1), items.put(2)] if is_main else taken.extend([items.get(), items.get()]), 1, 0)
    return taken


def first_of_two(rank):
    """Two producers, one consumer: who comes first is first."""
    items, taken = queue.SimpleQueue(), []
    beside(lambda item: items.put(item) if item else taken.append(items.get()), 0, "a", "b")
    return taken


def alive(rank):
    thread = start(int)
    seen = thread.is_alive()
    thread.join()
    return seen


def keys_of_a_store(rank):
    """Two threads of one rank write a key that both read."""
    seen = []

    def write(name):
        seen.append(store().compare_set("key", "", name).decode())

    beside(write, "m", "t")
    return seen[-1]


def sent_in_any_order(rank):
    """Rank 0 sends two messages by two threads, which match in the order they come."""
    if rank == 0:
        return beside(lambda value: dist.send(torch.tensor([value]), 1), 1.0, 2.0)
    received = [torch.zeros(1), torch.zeros(1)]
    for tensor in received:
        dist.recv(tensor, 0)
    return [tensor.item() for tensor in received]


def test_two_threads_of_each_of_two_ranks_on_one_group():
    """Each rank has two orders: 4 executions, in 2 of which the ranks' orders agree."""
    exploration = explored(one_group, 2)
    assert exploration.executions == 4
    assert exploration.outcomes == Counter({"pass": 2, "fail  mismatch.shape ranks 0, 1": 2})
    assert exploration.verdict is Verdict.FAIL
    failure = exploration.first_failure
    again = replay(one_group, 2, failure.schedule)
    assert (outcome_of_result(again), again.trace.digest()) == (outcome_of_result(failure), failure.trace.digest())


@pytest.mark.parametrize("program", [group_of_each, one_queue])
def test_the_repairs_are_covered_and_clean(program):
    exploration = explored(program, 2)
    assert exploration.outcomes == Counter({"pass": exploration.executions})
    assert program is one_queue or exploration.executions == 1, "calls on other groups are in no order"


@rows(
    ("names", "world_size", "count"),
    [("m", 1, 1), ("ma", 1, 2), ("mab", 1, 6), ("mabc", 1, 24), ("mt", 2, 4)],  # locks of two ranks are apart
)
def test_threads_take_a_lock_in_every_order(names, world_size, count):
    exploration = explored(lock_taken, world_size, args=tuple(names))
    assert exploration.executions == len(exploration.outcomes) == count


def test_threads_that_only_make_collectives_on_groups_of_their_own_and_are_joined():
    def program(rank):
        group = dist.new_group([0, 1, 2])
        for _ in range(3):
            thread = start(dist.barrier, group)
            dist.all_reduce(torch.ones(1))
            thread.join()

    assert explored(program, 3).executions == 1


def test_a_thread_that_is_joined_first_is_in_no_race():
    def program(rank):
        start(lambda: (dist.barrier(), store().set("key", "1"))).join()
        dist.barrier()
        return store().get("key")

    assert explored(program, 1).executions == 1


@pytest.mark.parametrize(
    ("program", "args", "outcomes"),
    [
        (lock_taken, ("m", "t"), 2),
        (tried, (), 2),
        (looked_at, (), 2),
        (alive, (), 2),
        (keys_of_a_store, (), 2),
        pytest.param(items_of_a_queue, (), 1, marks=pytest.mark.tier("nightly")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_full_search_finds_the_same_outcomes(program, args, outcomes):
    quick = explored(program, 1, args=args)
    full = explored(program, 1, args=args, policy="dfs")
    assert set(quick.outcomes) == set(full.outcomes)
    assert len(quick.outcomes) == outcomes
    assert quick.executions <= full.executions


def two_looks_on_a_line(rank):
    """The thread sets `first`, then `second`; who looks at `second` first sees neither, the first, or both."""
    first, second, seen = threading.Event(), threading.Event(), []
    beside(lambda is_main: seen.extend((second.is_set(), first.is_set())) if is_main else sets(first, second), 1, 0)
    return seen


def sets(*events):
    for event in events:
        event.set()


def looks_in_a_loop(rank, count):
    event, seen = threading.Event(), []
    beside(lambda is_main: seen.extend(event.is_set() for _ in range(count)) if is_main else event.set(), 1, 0)
    return seen


def gives_up(rank, count):
    """Looks so often, and then does something else."""
    event, result = threading.Event(), []

    def look():
        for _ in range(count):
            if event.is_set():
                return result.append("seen")
        result.append("gave up")

    beside(lambda is_main: look() if is_main else event.set(), 1, 0)
    return result


def looks_at_a_lock(rank):
    """Whether the thread, which gives the lock back twice, is seen between or after."""
    lock, taken, seen = threading.Lock(), [], []
    lock.acquire()

    def take():
        lock.release()
        taken.append(1)
        with lock:
            taken.append(2)

    def look():
        while lock.locked():
            pass
        seen.append(len(taken))

    beside(lambda is_main: look() if is_main else take(), 1, 0)
    return seen


@rows("policy", ["dpor", "dfs"])
@rows(
    ("program", "args", "outcomes"),
    [
        (two_looks_on_a_line, (), ["[False, False]", "[False, True]", "[True, True]"]),
        (looks_in_a_loop, (2,), ["[False, False]", "[False, True]", "[True, True]"]),
        (
            looks_in_a_loop,
            (3,),
            ["[False, False, False]", "[False, False, True]", "[False, True, True]", "[True, True, True]"],
        ),
        (gives_up, (3,), ["['gave up']", "['seen']"]),
        (looks_at_a_lock, (), ["[1]", "[2]"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_looks_at_what_others_do(policy, program, args, outcomes):
    found = explored(program, 1, args=args, policy=policy).outcomes
    assert sorted(found) == [f"pass  returned ({outcome},)" for outcome in outcomes]


@pytest.mark.parametrize("policy", ["dpor", "dfs"])
def test_a_function_that_looks_is_called_from_a_loop_and_from_elsewhere(policy):
    def program(rank):
        first, second, seen = threading.Event(), threading.Event(), []

        def has(event):
            return event.is_set()

        def look():
            while not has(first):
                pass
            seen.extend(has(second) for _ in range(2))

        beside(lambda is_main: look() if is_main else sets(first, second), 1, 0)
        return seen

    found = explored(program, 1, policy=policy).outcomes
    assert sorted(found) == [f"pass  returned ({seen},)" for seen in ([False, False], [False, True], [True, True])]


def test_who_puts_first_into_a_queue():
    assert len(explored(first_of_two, 1).outcomes) == 2


def test_messages_of_two_threads():
    exploration = explored(sent_in_any_order, 2)
    assert (exploration.executions, len(exploration.outcomes)) == (2, 2)
    bounded = explore(sent_in_any_order, 2, policy="dfs", preemptions=1, budget=PLENTY, keep_going=True)
    assert set(bounded.outcomes) == set(exploration.outcomes)


@pytest.mark.tier("nightly")
def test_few_preemptions_find_what_is_wrong_with_one_group():
    bounded = explore(one_group, 2, policy="dfs", preemptions=1, budget=PLENTY, keep_going=True)
    assert set(bounded.outcomes) == set(explored(one_group, 2).outcomes)


def test_who_is_carried_out_of_a_condition_is_told_of_no_error():
    """It has not got the condition's lock back; that is not the program's doing, and no `except` of it runs."""
    caught = []

    def wait(rank):
        condition = threading.Condition()
        try:
            with condition:
                condition.wait()
        except RuntimeError as error:
            caught.append(error)

    assert simulate(wait, 1).findings[0].code is Code.DEADLOCK_THREADS
    assert not caught
