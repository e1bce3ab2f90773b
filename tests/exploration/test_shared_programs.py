"""What torch keeps for a rank is shared by its threads: dpor tries each order in which they make, use or destroy it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ddpsim import Budget, Code, Verdict, explore, simulate
from tests.exploration.programs import add_up, store
from tests.exploration.shared_programs import compared, drawn_texts
from tests.kit.rank_threads import beside, start
from tests.kit.rows import rows


def used_apart(make, *, is_made_by_threads):
    """The program in which a group is made for each of two threads, by itself or beforehand, and both are used."""

    def program(rank):
        groups = {}

        def keep(name):
            groups[name] = make(rank)

        if is_made_by_threads:
            beside(lambda: keep("a"), lambda: keep("b"))
        else:
            keep("a")
            keep("b")
        for name, size in (("a", 1), ("b", 2)):
            dist.all_reduce(torch.ones(size), group=groups[name])

    return program


def plain_group(rank):
    return dist.new_group()


def hashed_group(rank):
    return dist.new_group([0, 1], use_local_synchronization=True)


def mesh_group(rank):
    return init_device_mesh("cpu", (2, 2)).get_group(1)


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
@pytest.mark.parametrize(("make", "size"), [(plain_group, 2), (hashed_group, 2), (mesh_group, 4)])
def test_groups_that_threads_make_get_their_names_in_either_order(make, size, isolation):
    found = explore(used_apart(make, is_made_by_threads=True), size, isolation=isolation)
    wanted = Code.MISMATCH_GROUP if make is mesh_group else Code.DEADLOCK_CYCLE
    assert found.first_failure.findings[0].code is wanted
    repaired = explore(used_apart(make, is_made_by_threads=False), size, isolation=isolation)
    assert (repaired.verdict, repaired.executions) == (Verdict.PASS, 1)


def destroyed_beside(is_used):
    """The program in which a thread destroys a group that the main one uses, or another one."""

    def program(rank):
        used, other = dist.new_group(), dist.new_group()
        thread = start(dist.destroy_process_group, used if is_used else other)
        try:
            dist.all_reduce(torch.ones(1), group=used)
            size = 1
        except RuntimeError:
            size = 2
        thread.join()
        dist.all_reduce(torch.ones(size))

    return program


def test_a_group_that_a_thread_destroys_is_used_before_and_afterwards():
    assert explore(destroyed_beside(is_used=True), 2).verdict is Verdict.FAIL
    repaired = explore(destroyed_beside(is_used=False), 2)
    assert (repaired.verdict, repaired.complete) == (Verdict.PASS, True)


def test_a_thread_is_asked_for_the_default_group_before_and_after_it_is_destroyed():
    def program(rank):
        own = store()
        thread = start(dist.destroy_process_group)
        own.check(["k"])
        seen = dist.is_initialized()
        thread.join()
        return seen

    outcomes = explore(program, 1, keep_going=True).outcomes
    assert set(outcomes) == {"pass  returned (False,)", "pass  returned (True,)"}


def test_a_time_out_of_a_store_that_a_thread_sets_counts_for_later_waits():
    def program(rank):
        own = dist.HashStore()
        start(own.set_timeout, timedelta(seconds=1))
        own.check(["l"])
        own.get("k")

    outcomes = explore(program, 1, keep_going=True).outcomes
    assert set(outcomes) == {"fail  rank_error rank 0", "fail  deadlock.missing_rank rank 0"}


def test_groups_that_are_made_beforehand_cost_no_execution():
    def program(rank):
        groups = [dist.new_group(), dist.new_group()]
        beside(*[lambda group=group: dist.broadcast(torch.ones(1), 0, group=group) for group in groups])

    assert explore(program, 2).executions == 1


# --- futures that a thread sets ---------------------------------------------------------------------------------------


def awaited(sets):
    """The program in which a thread may set the future for which the main one waits."""

    def program(rank):
        future = torch.futures.Future()
        thread = start(lambda: (dist.barrier(), sets and future.set_result(rank)))
        value = future.wait()
        thread.join()
        return value

    return program


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_a_future_that_another_thread_sets_is_waited_for(isolation):
    result = simulate(awaited(sets=True), 2, isolation=isolation)
    assert (result.verdict, result.returns) == (Verdict.PASS, (0, 1))
    assert explore(awaited(sets=True), 2, isolation=isolation).verdict is Verdict.PASS


def test_a_future_that_nobody_sets_is_a_deadlock_at_once():
    (finding,) = simulate(awaited(sets=False), 2).findings
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_THREADS, (0, 1))
    assert "waits for a future" in str(finding)


def test_a_future_that_a_callback_of_a_call_sets_is_waited_for():
    def program(rank):
        future = torch.futures.Future()

        def call():
            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: future.set_result(2))

        start(call)
        return future.wait()

    assert simulate(program, 2).returns == (2, 2)


def test_a_callback_is_added_before_and_after_the_future_is_set():
    def program(rank):
        future, seen = torch.futures.Future(), []
        thread = start(future.set_result, 1)
        store().check(["k"])
        future.then(lambda _: seen.append("called"))
        seen.append("added")
        thread.join()
        return seen

    assert len(explore(program, 1, keep_going=True).outcomes) == 2


# --- what the budget leaves out ---------------------------------------------------------------------------------------


def reduced_by_a_pool(is_one_group):
    """The program in which each of two workers makes a call, on one group or on a group of its own."""

    def program(rank):
        groups = [None, None] if is_one_group else [dist.new_group(), dist.new_group()]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda size: dist.all_reduce(torch.ones(size), group=groups[size - 1]), (1, 2)))

    return program


SOME = Budget(executions=200)


@pytest.mark.tier("ci")
def test_the_last_tenth_of_a_budget_goes_to_random_schedules():
    found = explore(reduced_by_a_pool(is_one_group=True), 2, budget=SOME)
    assert found.first_failure.findings[0].code is Code.MISMATCH_SHAPE
    assert found.executions > 180
    repaired = explore(reduced_by_a_pool(is_one_group=False), 2, budget=SOME)
    assert repaired.verdict is Verdict.UNKNOWN
    assert repaired.extent == (
        "Not all interleavings covered: the budget ran out after 200 executions, "
        "the last 20 of them on random schedules"
    )


def test_what_can_be_covered_needs_none():
    assert explore(add_up, 2, budget=Budget(executions=10)).drawn == 0


# --- drawn ------------------------------------------------------------------------------------------------------------


@rows("seed", range(12))
def test_dpor_misses_nothing_that_random_schedules_find(seed):
    assert not compared(drawn_texts(seed), walks=20).missed


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("hundred", range(20))
def test_dpor_misses_nothing_in_many_programs(hundred):
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        assert not compared(drawn_texts(seed)).missed, seed
