"""What is said to be covered is said of what was compared: the words, and where they come from."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from ddpsim import Crash, explore
from ddpsim.simulator.exploration.dpor import OF_THE_STORE, OF_THREADS, Dpor, uncompared_features
from tests.exploration.differential import FAMILIES
from tests.exploration.kernel_programs import store_operation
from tests.exploration.programs import store
from tests.exploration.thread_programs import Shared
from tests.kit.rank_threads import start

UNTESTED = (
    "DPOR ran all interleavings that it tells apart, but was not tested for {}, and does not see files, "
    "shared objects, hash order and time: 1 execution"
)


def test_the_operations_of_the_store_are_those_of_the_compared_programs():
    letters = [letter for family in FAMILIES.values() for letter in family]
    assert {store_operation(letter).operation for letter in letters if store_operation(letter)} == OF_THE_STORE


def used_by(program):
    used = set()

    class Noting(Dpor):
        def next_policy(self):
            policy = super().next_policy()
            used.update(self._used)
            return policy

    explore(program, 1, policy=Noting(1))
    return used


def test_the_classes_of_threads_are_those_of_the_compared_programs():
    """All but the executor are made with what the threads share."""
    assert used_by(lambda rank: Shared()) == OF_THREADS - {"ThreadPoolExecutor"}


def test_what_an_executor_is_made_of_is_its_own():
    """Of its queue, which is a class of Python's and no function, as locks are from Python 3.13 on, it is the maker."""
    used = used_by(lambda rank: ThreadPoolExecutor(1).submit(int).result())
    assert used == {"Condition", "Event", "Semaphore", "ThreadPoolExecutor"}


def test_nothing_is_said_of_what_was_compared():
    assert uncompared_features(OF_THE_STORE | OF_THREADS) == []


def test_what_was_not_compared_is_named():
    def one(rank):
        queue.LifoQueue()
        store().set("k", "v")

    def two(rank):
        queue.LifoQueue()
        threading.BoundedSemaphore()

    assert explore(one, 1).extent == UNTESTED.format("LifoQueue")
    assert explore(two, 1).extent == UNTESTED.format("BoundedSemaphore, LifoQueue")


def test_so_are_faults():
    def nothing(rank):
        pass

    covered = explore(nothing, 1, faults=[Crash(0, before_call=0)])
    assert covered.extent == UNTESTED.format("faults")


def test_so_are_callbacks_of_calls():
    """When one runs hangs on when the other ranks have made the call, which is no access."""

    def program(rank):
        group = dist.new_group()
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        future.then(lambda _: dist.barrier(group)).wait()

    assert explore(program, 2).extent == UNTESTED.format("callbacks of calls")


def test_locks_made_before_the_run_are_named_where_a_rank_has_threads():
    def program(rank):
        start(int).join()

    assert explore(program, 1).extent == (
        "All interleavings covered, but for files, shared objects, locks made before the run, hash order and time: "
        "1 execution"
    )
