"""DPOR: exactly one execution for each class of interleavings, and every outcome that a full search finds."""

import math
import queue
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Budget, Verdict, explore
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.exploration.explorer import outcome_of_result
from ddpsim.simulator.policies.dfs import Dfs
from tests.exploration.drawn import drawn_program
from tests.exploration.programs import senders_to_one, store, two_receivers, write_and_read
from tests.kit.futures import FUTURES, future_of
from tests.kit.rows import rows
from tests.tiers import sweep

PLENTY = Budget(executions=10_000, seconds=600)


def explored(program, world_size, **options):
    exploration = explore(program, world_size, policy="dpor", budget=PLENTY, keep_going=True, **options)
    assert exploration.complete
    return exploration


# --- counts that are known --------------------------------------------------------------------------------------------


def post_all(rank):
    """As senders_to_one, but the receives are there before any message is."""
    count = dist.get_world_size() - 1
    if rank:
        dist.barrier()
        dist.send(torch.tensor(float(rank)), 0)
        return None
    received = [torch.zeros(()) for _ in range(count)]
    works = [dist.irecv(tensor) for tensor in received]
    dist.barrier()
    for work in works:
        work.wait()
    return [tensor.item() for tensor in received]


def take_one(rank):
    if rank:
        dist.isend(torch.zeros(1), 0)
        return None
    return dist.recv(torch.zeros(1))


def read_what_two_write(rank):
    """The key is not there at first, so the reader waits: it comes after one of the writers, or both."""
    if rank < 2:
        store().set("key", f"by {rank}")
        return None
    return store().get("key").decode()


def read_together(rank):
    if rank == 0:
        store().set("key", "a")
    dist.barrier()
    return store().get("key").decode() if rank else store().set("key", "b")


def write_keys_of_ones_own(rank):
    for step in range(3):
        store().set(f"{rank}", f"{step}")


def collectives_and_messages(rank):
    tensor, size = torch.ones(3), dist.get_world_size()
    works = [dist.all_reduce(tensor, async_op=True), dist.isend(torch.ones(1), (rank + 1) % size)]
    pair = dist.new_group([0, size - 1])
    received = torch.zeros(1)
    dist.recv(received, (rank - 1) % size)
    for work in works:
        work.wait()
    if rank in (0, size - 1):
        dist.broadcast(tensor, 0, group=pair)
    dist.barrier()


def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(1 + rank):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(rank))).sum().backward()
            optimizer.step()


def announced(rank):
    """Rank 2 sends once rank 1 has told it to, by then rank 0 may have taken rank 3's message or not."""
    if rank == 0:
        return dist.recv(torch.zeros(1)), dist.recv(torch.zeros(1))
    if rank == 1:
        store().set("go", "now")
    elif rank == 2:
        store().get("go")
        dist.send(torch.zeros(1), 0)
    else:
        dist.send(torch.zeros(1), 0)
    return None


COUNTS = [
    # Senders to one receiver that takes what comes: whether a message or its receive is there first.
    *((senders_to_one, senders + 1, math.factorial(senders), math.factorial(senders)) for senders in (1, 2, 3, 4)),
    *((post_all, senders + 1, math.factorial(senders), math.factorial(senders)) for senders in (1, 2, 3, 4)),
    # Who comes too late is in no order: three classes, and not 3!.
    (take_one, 4, 3, 3),
    # Two receivers do not multiply.
    (two_receivers, 6, 4, 4),
    # A message that has to be waited for comes before the other one, or after it.
    (announced, 4, 2, 2),
    # Two writers and a reader of a key that exists, and of one that is not there at first:
    (write_and_read, 3, 6, 3),
    (read_what_two_write, 3, 4, 2),  # w0 w1 r, w1 w0 r, w0 r w1, w1 r w0
    # Each of the two readers comes before the second write or after it; among themselves they have no order.
    (read_together, 3, 4, 4),
    # What is in no order at all: keys of one's own, collectives, messages by name, a training with join.
    (write_keys_of_ones_own, 4, 1, 1),
    *((collectives_and_messages, world_size, 1, 1) for world_size in (2, 5, 16)),
    (train, 4, 1, 1),
]


@rows(("program", "world_size", "executions", "outcomes"), COUNTS)
def test_one_execution_for_each_class(program, world_size, executions, outcomes):
    exploration = explored(program, world_size)
    assert (exploration.executions, len(exploration.outcomes)) == (executions, outcomes)
    times = "execution" if executions == 1 else "executions"
    assert (
        str(exploration).splitlines()[1]
        == f"  All interleavings covered, but for files, shared objects, hash order and time: {executions} {times}"
    )


# --- polls ------------------------------------------------------------------------------------------------------------


def look_once(rank):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    was_complete = work.is_completed() if rank == 0 else None
    work.wait()
    return was_complete


def test_a_poll_sees_a_call_complete_and_not():
    exploration = explored(look_once, 2)
    assert sorted(exploration.outcomes) == [
        "pass  returned (False, None)",
        "pass  returned (True, None)",
    ]


def wait_in_a_loop(rank):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while rank == 0 and not work.is_completed():
        pass
    work.wait()


def test_a_loop_that_polls_has_an_end():
    assert explored(wait_in_a_loop, 3).verdict is Verdict.PASS


# --- failures ---------------------------------------------------------------------------------------------------------


class Recording:
    """A strategy that keeps what came out of each execution."""

    def __init__(self, strategy):
        self.outcomes = set()
        self._strategy = strategy

    def __getattr__(self, name):
        return getattr(self._strategy, name)

    def take(self, result):
        self.outcomes.add(outcome_of_result(result))
        return self._strategy.take(result)


@pytest.mark.parametrize("seed", sweep(range(300), lambda seed: seed < 6))
def test_drawn_programs_have_the_outcomes_of_a_full_search(seed):
    program = drawn_program(seed)
    full, few = Recording(Dfs()), Recording(Dpor(2))
    for strategy, executions in ((full, 150), (few, 1000)):
        explore(program, 2, policy=strategy, budget=Budget(executions=executions, seconds=600), keep_going=True)
    assert few.is_complete
    assert full.outcomes <= few.outcomes, program.text
    if full.is_complete:
        assert full.outcomes == few.outcomes, program.text


# --- what is an access ------------------------------------------------------------------------------------------------


def look_at_a_future(rank, *, kind, looking):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    future = future_of(work, kind)
    was_done = future.done() if rank in looking else None
    work.wait()
    return was_done


@pytest.mark.parametrize(
    ("looking", "outcomes"),
    [
        pytest.param((0,), {"(False, None)", "(True, None)"}, marks=pytest.mark.tier("nightly")),
        pytest.param((1,), {"(None, False)", "(None, True)"}, marks=pytest.mark.tier("nightly")),
        # who fills the slot finds the call complete, as `is_completed` does
        ((0, 1), {"(False, True)", "(True, False)", "(True, True)"}),
    ],
)
@pytest.mark.parametrize("kind", FUTURES)
def test_a_look_at_a_future_sees_it_done_and_not(kind, looking, outcomes):
    program = partial(look_at_a_future, kind=kind, looking=looking)
    full = explore(program, 2, policy="dfs", budget=PLENTY, keep_going=True)
    assert full.complete
    few = explored(program, 2)
    assert set(few.outcomes) == set(full.outcomes) == {f"pass  returned {outcome}" for outcome in outcomes}
    assert few.executions == len(outcomes)


def times_out(rank):
    """Both alarms are due after a second: rank 1 may issue its call before rank 0 looks at the clock, or later."""
    if rank:
        time.sleep(1)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank:
        return work.wait()
    try:
        return work.wait(timedelta(seconds=1))
    except RuntimeError:
        return "too late"


def locks_time_out(rank):
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lambda: (time.sleep(1), lock.release()))
    thread.start()
    in_time = lock.acquire(timeout=1)
    thread.join()
    return in_time


def queues_time_out(rank):
    items = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: (time.sleep(1), items.put(True)))
    thread.start()
    try:
        in_time = items.get(timeout=1)
    except queue.Empty:
        in_time = False
    thread.join()
    return in_time


@rows(
    ("program", "world_size", "outcomes"),
    [
        (times_out, 2, ["('too late', True)", "(True, True)"]),
        (locks_time_out, 1, ["(False,)", "(True,)"]),
        (queues_time_out, 1, ["(False,)", "(True,)"]),
    ],
)
@rows("policy", ["dpor", "dfs"])
def test_who_is_woken_at_the_same_instant_comes_in_any_order(program, world_size, outcomes, policy):
    exploration = explore(program, world_size, policy=policy, budget=PLENTY, keep_going=True)
    assert sorted(exploration.outcomes) == [f"pass  returned {outcome}" for outcome in outcomes]


def test_an_execution_that_was_cut_short_covers_nothing():
    def program(rank):
        while rank == 0 or store().check(["never"]):
            store().add("turns", 1)

    exploration = explore(program, 2, budget=Budget(steps=50, executions=10), keep_going=True)
    assert not exploration.complete
    assert exploration.verdict is Verdict.UNKNOWN
    assert "Not all interleavings covered" in str(exploration)
