"""The store in memory, from Python, and from C++ through a PrefixStore of the program."""

import re
import time
from datetime import timedelta
from functools import partial

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import Budget, Code, EventKind, Verdict, simulate
from tests.kit.results import returned

SOON = timedelta(seconds=5)


def own_store():
    return distributed_c10d._get_default_store()


def prefix_store():
    # C++: what is called on it comes back to the store through torch's trampolines.
    return dist.PrefixStore("mine", own_store())


STORES = [pytest.param(own_store, id="python"), pytest.param(prefix_store, id="prefix")]


def values(store):
    store.set("key", "value")
    store.set("bytes", b"\x00\xff")
    store.append("log", "a")
    store.append("log", "b")
    store.multi_set(["x", "y"], ["1", "2"])
    return store.get("key"), store.get("bytes"), store.get("log"), store.multi_get(["y", "x"])


def compared(store):
    """As torch's stores have it: a missing key is set only if nothing is expected, and what is there comes back."""
    tried = [store.compare_set("key", "other", "new"), store.check(["key"])]
    tried += [store.compare_set("key", *pair) for pair in (("", "first"), ("other", "new"), ("first", "second"))]
    return [*tried, store.get("key")]


def counted(store):
    before = store.num_keys()
    store.multi_set(["a", "b"], ["1", "2"])
    seen = [store.check(["a", "b"]), store.check(["a", "c"]), store.num_keys() - before]
    return [*seen, store.delete_key("a"), store.delete_key("a"), store.check(["a"])]


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize(
    ("ask", "answers"),
    [
        (values, (b"value", b"\x00\xff", b"ab", [b"2", b"1"])),
        (compared, [b"other", False, b"first", b"first", b"second", b"second"]),
        (counted, [True, False, 2, True, False, False]),
    ],
)
def test_what_a_rank_is_answered(make, ask, answers):
    assert returned(lambda rank: ask(make()), 1) == (answers,)


@pytest.mark.parametrize("make", STORES)
def test_add_counts_across_ranks(make):
    def program(rank):
        store = make()
        store.add("count", rank + 1)
        dist.barrier()
        return store.add("count", 0), store.get("count")

    assert returned(program, 3) == ((6, b"6"),) * 3


@pytest.mark.parametrize("make", STORES)
def test_who_looks_at_a_number_in_a_loop_lets_the_others_run(make):
    def program(rank):
        store = make()
        store.add("arrived", 1)
        looks = 1
        while store.add("arrived", 0) < 3:
            looks += 1
        return looks

    assert returned(program, 3) == (2, 2, 1)


def test_who_looks_at_a_number_that_never_comes_is_told():
    (finding,) = simulate(
        lambda rank: any(own_store().add("none", 0) for _ in range(10**9)), 2, budget=Budget(polls=1000)
    ).findings
    assert finding.code is Code.BUDGET
    assert "polled" in finding.summary


def test_keys_are_listed_under_their_prefix():
    def program(rank):
        store = own_store().with_prefix("here/")
        store.set("b", "1")
        store.set("a", "2")
        own_store().set("elsewhere", "3")
        return store.list_keys()

    assert returned(program, 1) == (["a", "b"],)  # by name, whichever came first


@pytest.mark.parametrize("make", STORES)
def test_a_wait_with_a_timeout_ends_in_virtual_time(make):
    def program(rank):
        with pytest.raises(dist.DistStoreError, match="wait timeout after 5000ms"):
            make().wait(["never"], SOON)

    result = simulate(program, 2)
    result.raise_for_verdict()
    assert result.virtual_seconds == 5.0
    for rank in range(2):
        texts = {event.kind: event.text for event in result.trace if event.rank == rank}
        assert texts[EventKind.DONE] == f"{texts[EventKind.WAIT]} timed out"


@pytest.mark.parametrize("make", STORES)
def test_a_wait_for_a_key_that_nobody_sets_is_a_deadlock(make):
    def program(rank):
        if rank == 1:
            make().get("answer")

    result = simulate(program, 2)
    assert result.verdict is Verdict.FAIL
    assert [finding.code.value for finding in result.findings] == ["deadlock.missing_rank"]
    assert "answer" in str(result.findings[0])


def test_queues():
    def program(rank):
        store = own_store()
        if rank == 0:
            for value in "abc":
                store.queue_push("jobs", value)
            dist.barrier()
            return store.queue_len("jobs"), store.check(["jobs"])
        taken = [store.queue_pop("jobs"), store.queue_pop("jobs")]
        dist.barrier()
        return taken

    assert returned(program) == ((1, True), [b"a", b"b"])


def test_an_empty_queue_says_so_and_a_key_with_a_plain_value_has_none_to_wait_for():
    """As torch's HashStore and TCPStore: it waits for the key, and finds no queue there."""

    def program(rank):
        store = own_store()
        assert store.queue_len("none") == 0
        with pytest.raises(dist.QueueEmptyError, match="queue is empty"):
            store.queue_pop("none", block=False)
        store.set("plain", "value")
        with pytest.raises(dist.QueueEmptyError, match="queue is empty"):
            store.queue_pop("plain")
        return store.get("plain")

    assert returned(program, 1) == (b"value",)


def test_a_barrier_of_the_store_meets_again_and_again():
    def program(rank):
        store = own_store()
        for turn in range(3):
            store.add(f"arrived {turn}", 1)
            store.barrier("here", 3, SOON)
            assert store.add(f"arrived {turn}", 0) == 3

    for seed in range(5):
        returned(program, 3, policy="random", seed=seed)


def test_torch_rendezvous_barrier_runs_in_virtual_time():
    def program(rank):
        store = own_store()
        if rank < 2 or dist.get_world_size() == 2:
            distributed_c10d._store_based_barrier(rank, store, "name", dist.get_world_size(), timedelta(seconds=60))

    returned(program, 2)
    result = simulate(program, 3)
    assert {type(error).__name__ for error in result.errors.values()} == {"DistStoreError"}
    assert 60 < result.virtual_seconds < 120


def test_timeout_and_clone():
    def program(rank):
        store = own_store()
        store.set_timeout(SOON)
        clone = store.clone()
        clone.set("key", "1")
        return store.timeout, store.get("key"), store.has_extended_api(), prefix_store().has_extended_api()

    assert returned(program, 1) == ((SOON, b"1", True, True),)


class Favouring:
    """Lets one rank run whenever it can."""

    def __init__(self, rank):
        self.rank = rank

    def choose(self, point, options):
        return list(options).index(self.rank) if self.rank in options else 0


@pytest.mark.parametrize("first", [0, 1])
def test_a_key_that_comes_at_the_instant_of_the_time_out_is_in_time_or_not(first):
    def program(rank):
        if rank == 0:
            own_store().wait(["key"], timedelta(seconds=1))
        else:
            time.sleep(1)
            own_store().set("key", "value")

    result = simulate(program, 2, policy=Favouring(first))
    if first == 0:
        assert [str(error) for error in result.errors.values()] == [
            "wait timeout after 1000ms, keys: /default_pg/0//key"
        ]
    else:
        result.raise_for_verdict()


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_a_value_pushed_wakes_the_rank_that_takes_it_and_the_one_that_looks(policy):
    def program(rank):
        store = own_store()
        if rank == 0:
            store.wait(["queue"])
        if rank == 1:
            return store.queue_pop("queue")
        if rank == 2:
            time.sleep(1)
            store.queue_push("queue", "value")
        return None

    for seed in range(10):
        assert returned(program, 3, policy=policy, seed=seed)[1] == b"value"


def test_each_value_of_a_queue_is_taken_once_and_the_last_taker_is_missing_one():
    def program(rank):
        store = own_store()
        if rank == 0:
            time.sleep(1)
            store.queue_push("queue", "a")
            store.queue_push("queue", "b")
            return None
        return store.queue_pop("queue")

    for seed in range(10):
        assert sorted(returned(program, 3, policy="random", seed=seed)[1:]) == [b"a", b"b"]
    result = simulate(program, 4)
    assert [finding.code.value for finding in result.findings] == ["deadlock.missing_rank"]
    assert sorted(filter(None, result.returns)) == [b"a", b"b"]


def sets_some(rank, *, timeout=None, late=("a", "c")):
    """Of four keys that both wait for, rank 0 sets two, and those before or after rank 1 has begun to wait."""
    store = own_store()
    if rank == 0:
        time.sleep(1)
        for key in late:
            store.set(key, "1")
    store.wait(["a", "b", "c", "d"], *([] if timeout is None else [timeout]))


def test_a_wait_for_several_keys_tells_those_that_nobody_has_set_by_now():
    (finding,) = simulate(sets_some, 2).findings
    missing = "store keys 'default_pg/0//b', 'default_pg/0//d'"
    for rank in (0, 1):
        told = rf"  rank {rank}  waits for {missing}  test_store.py:\d+  no rank has set them\n"
        assert re.search(told, finding.text)
    (finding,) = simulate(partial(sets_some, late="abc"), 2).findings
    assert finding.text.count("waits for store key 'default_pg/0//d'") == 2
    assert finding.text.count("no rank has set it\n") == 2
    assert simulate(partial(sets_some, late="abcd"), 2).verdict is Verdict.PASS


def test_a_wait_that_times_out_tells_them_too():
    (finding,) = simulate(partial(sets_some, timeout=timedelta(seconds=2)), 2).findings
    assert finding.code == "rank_error"
    assert "wait timeout after 2000ms, keys: /default_pg/0//a, /default_pg/0//b, /default_pg/0//c" in finding.summary
    assert "cause   ranks 0, 1 waited for store keys; no rank had set 'default_pg/0//b', 'default_pg/0//d'" in str(
        finding
    )
