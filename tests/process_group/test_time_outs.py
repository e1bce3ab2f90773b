"""Time-outs of groups and of the store end waits in virtual time, as gloo's do. All was measured on real gloo first."""

import contextlib
import re
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Budget, Code, Verdict, explore, simulate
from ddpsim.simulator.kernel.time_outs import TimeOuts
from tests.kit.futures import done
from tests.kit.results import returned

TIMED_OUT = "Timed out waiting 8000ms for recv operation to complete"
CLOSED = "Connection closed by peer"
OWN = "Application timeout caused pair closure"
ISOLATIONS = pytest.mark.parametrize("isolation", ["thread", "process"])


def seconds(number):
    return timedelta(seconds=number)


def attempt(call, *arguments, **options):
    """Return the error of a call as torch words it, without its place; "ok" without one."""
    try:
        call(*arguments, **options)
    except RuntimeError as error:
        return str(error).partition("] ")[2].partition(" [127")[0] or str(error)
    return "ok"


def new_group(limit=8):
    return dist.new_group(timeout=seconds(limit))


COLLECTIVES = {
    "barrier": lambda group, rank: dist.barrier(group),
    "all_reduce": lambda group, rank: dist.all_reduce(torch.ones(2), group=group),
    "broadcast": lambda group, rank: dist.broadcast(torch.ones(2), src=1, group=group),
    "all_gather_object": lambda group, rank: dist.all_gather_object([None] * 2, 1, group=group),
    "recv": lambda group, rank: (dist.send if rank else dist.recv)(torch.ones(2), 1 - rank, group=group),
    "a future": lambda group, rank: dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future().wait(),
}


@ISOLATIONS
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_sleeps_longer_than_the_time_out(name, isolation):
    def program(rank):
        group = new_group()
        if rank == 1:
            time.sleep(12)
        began = time.monotonic()
        first = attempt(COLLECTIVES[name], group, rank)
        took = round(time.monotonic() - began)
        return first, took, attempt(dist.barrier, group), attempt(dist.barrier)

    expected = (TIMED_OUT, 8, OWN, "ok"), (CLOSED, 0, CLOSED, "ok")  # another group is as before
    assert returned(program, 2, isolation=isolation) == expected


@ISOLATIONS
def test_a_rank_that_sleeps_less_is_waited_for(isolation):
    def program(rank):
        group = new_group()
        time.sleep(7 * rank)
        return [attempt(call, group, rank) for call in COLLECTIVES.values()]

    assert returned(program, 2, isolation=isolation) == (["ok"] * len(COLLECTIVES),) * 2


def test_the_finding_names_the_rank_that_was_late():
    def program(rank):
        group = new_group()
        if rank == 0:
            time.sleep(12)
        dist.barrier(group)

    first, second = simulate(program, 3).findings
    assert first.code is Code.RANK_ERROR
    assert first.ranks == (0,)
    text = str(first)
    assert "ranks 1, 2 raised RuntimeError" in text
    assert "rank 0  waits for the clock" in text
    assert 'rank 0 had not reached barrier #1 on "1" after 8000 ms' in text
    assert "gloo then closes the connections" in str(second)


def test_a_deadlock_is_told_at_once():
    """As if there were no time-outs: nobody sleeps."""

    def program(rank):
        group = new_group(1)
        if rank == 0:
            dist.barrier(group)

    result = simulate(program, 2)
    assert result.findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert result.virtual_seconds == 0


def test_a_thread_that_only_beats_leaves_a_deadlock_a_deadlock():
    def program(rank):
        group = new_group()

        def beat():
            while True:
                time.sleep(1)

        threading.Thread(target=beat, daemon=True).start()
        if rank == 0:
            dist.barrier(group)
        else:
            dist.recv(torch.ones(1), 0)

    assert simulate(program, 2).findings[0].code is Code.DEADLOCK_CYCLE


def test_a_collective_has_its_time_from_its_issue_and_a_message_from_its_wait():
    def collective(rank):
        group = new_group()
        time.sleep(9 * rank)
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        time.sleep(12)
        return work.is_completed(), attempt(work.wait)

    def message(rank):
        group = new_group()
        if rank:
            time.sleep(9)
            return attempt(dist.send, torch.ones(1), 0, group=group)
        work = dist.irecv(torch.ones(1), 1, group=group)
        time.sleep(5)
        return attempt(work.wait)

    assert returned(collective, 2) == ((True, TIMED_OUT), (True, CLOSED))
    assert returned(message, 2) == ("ok", "ok")


@ISOLATIONS
def test_the_time_out_of_a_single_wait(isolation):
    """Of a collective it gives up the wait alone; of a message, the connections, too."""

    def collective(rank):
        group = new_group()
        time.sleep(3 * rank)
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        first = attempt(work.wait, seconds(1))
        time.sleep(6 - 3 * rank)
        return first, attempt(work.wait), attempt(dist.barrier, group)

    def message(rank):
        group = new_group()
        if rank:
            time.sleep(3)
            return attempt(dist.send, torch.ones(1), 0, group=group)
        work = dist.irecv(torch.ones(1), 1, group=group)
        return attempt(work.wait, seconds(1)).partition(" for")[0], attempt(dist.barrier, group)

    assert returned(collective, 2, isolation=isolation) == (("Operation timed out!", "ok", "ok"), ("ok", "ok", "ok"))
    assert returned(message, 2, isolation=isolation) == (("Timed out waiting 1000ms", OWN), CLOSED)


@ISOLATIONS
def test_a_rank_that_gives_up_and_ends(isolation):
    """gloo_timeout_exit: its unfinished call never completes; gloo_timeout_live: it does, if the rank lives on."""

    def program(rank, lives_on):
        time.sleep(3 * rank)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 0:
            attempt(work.wait, seconds(1))
            time.sleep(6 * lives_on)
        else:
            work.wait()

    (finding,) = simulate(program, 2, args=(False,), isolation=isolation).findings
    assert finding.ranks == (0,)
    assert CLOSED in finding.summary
    assert "rank 0 ended before all_reduce #0 was complete" in str(finding)
    assert simulate(program, 2, args=(True,), isolation=isolation).verdict is Verdict.PASS


@ISOLATIONS
def test_waits_for_the_store(isolation):
    def program(rank):
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(seconds(8))
        if rank:
            time.sleep(20)
            store.set("late", "1")
            return None
        return (
            attempt(store.get, "late"),
            attempt(store.wait, ["late"], seconds(2)),
            attempt(store.wait, ["late"]),
            attempt(store.get, "late"),
        )

    missing = "wait timeout after {}ms, keys: /default_pg/0//late"
    expected = missing.format(8000), missing.format(2000), missing.format(8000), "ok"
    assert returned(program, 2, isolation=isolation)[0] == expected


@ISOLATIONS
def test_a_time_out_of_the_default_store_ends_a_wait_that_nobody_will_end(isolation):
    def program(rank, limit):
        store = dist.distributed_c10d._get_default_store()
        if limit:
            store.set_timeout(seconds(limit))
        return attempt(store.get, "never"), attempt(store.wait, ["never"])

    missing = "wait timeout after 8000ms, keys: /default_pg/0//never"
    assert returned(program, 2, args=(8,), isolation=isolation)[0] == (missing, missing)
    (finding,) = simulate(program, 2, args=(0,), isolation=isolation).findings
    assert finding.code == "deadlock.missing_rank"


def test_a_rank_that_makes_a_group_too_late():
    def program(rank):
        time.sleep(12 * rank)
        return attempt(new_group)

    early, late = returned(program, 2)
    assert early == "wait timeout after 8000ms, keys: /default_pg/0//1//cpu//0/1"
    assert late.startswith("timed out connecting")


def test_a_monitored_barrier_that_is_given_up_closes_the_connections():
    def program(rank):
        group = new_group()
        time.sleep(3 * rank)
        attempt(dist.monitored_barrier, group, seconds(1))
        return attempt(dist.barrier, group)

    assert returned(program, 2) == (OWN, CLOSED)


def test_the_time_out_of_nccl():
    def program(rank):
        group = dist.new_group(backend="nccl", timeout=seconds(8))
        time.sleep(12 * rank)
        dist.all_reduce(torch.ones(1), group=group)

    first, *_ = simulate(program, 2).findings
    text = str(first)
    assert "DistBackendError" in text
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in text
    assert "OpType=ALLREDUCE, Timeout(ms)=8000) ran for 8000 milliseconds before timing out." in text


def test_an_exploration_says_that_it_does_not_know_time_outs():
    def program(rank):
        group = new_group()
        time.sleep(12 * rank)
        return attempt(dist.barrier, group)

    found = explore(program, 2)
    assert found.verdict is Verdict.PASS
    assert "time-outs of groups" in str(found)


def test_a_time_out_that_is_set_later():
    """_set_pg_timeout, as torchtitan calls it; in a backward, which DDP's reducer waits for."""

    def program(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        dist.distributed_c10d._set_pg_timeout(seconds(8))
        time.sleep(12 * rank)
        return attempt(model(torch.ones(1, 2)).sum().backward)

    assert returned(program, 2) == (TIMED_OUT, CLOSED)


# --- a rank that waits for one whose program has ended ---------------------------------------------------------------


def catches(rank):
    if rank == 1:
        return ""
    return attempt(dist.all_reduce, torch.ones(1))


def suppresses(rank):
    with suppress(RuntimeError):
        dist.all_reduce(torch.ones(1)) if rank == 0 else None
    return CLOSED


def tries_three_times(rank):
    return ", ".join([attempt(dist.barrier) for _ in range(3)]) if rank == 0 else ""


def goes_on_with_those_left(rank):
    first, left = attempt(dist.barrier) if rank < 2 else "", dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=left)
    return first


def ends_one_by_one(rank):
    return attempt(dist.recv, torch.ones(1), rank + 1) if rank < 2 else ""


SURVIVORS = {
    catches: (2, "0 waits for rank 1"),
    suppresses: (2, "0 waits for rank 1"),
    tries_three_times: (2, "0 waits for rank 1"),
    goes_on_with_those_left: (3, "0 waits for rank 2, 1 waits for rank 2"),
    ends_one_by_one: (3, "1 waits for rank 2, 0 waits for rank 1"),
}


@ISOLATIONS
@pytest.mark.parametrize("program", SURVIVORS)
def test_who_catches_the_error_of_a_wait_for_an_ended_rank_has_survived(program, isolation):
    world_size, waits = SURVIVORS[program]
    result = simulate(program, world_size, isolation=isolation)
    result.raise_for_verdict()
    assert CLOSED in result.returns[0]
    assert [re.sub(r"\w+ at test_time_outs.py:\d+", "line", note) for note in result.notes] == [
        f"not checked: other schedules from where rank {wait} (line), whose program has ended: on gloo the wait raises "
        "an error, which was caught here"
        for wait in waits.split(", ")
    ]
    explored = explore(program, world_size, isolation=isolation, budget=Budget(executions=30))
    assert explored.verdict is Verdict.UNKNOWN or "up to the error of a closed connection" in explored.extent
    assert str(explored).count("note    not checked: other schedules from where rank ") == 1
    assert simulate(program, world_size, isolation=isolation, backend_semantics="nccl").findings


def does_not_catch(rank):
    try:
        rank or dist.barrier()
    finally:
        dist.destroy_process_group()


def catches_another(rank):
    with suppress(KeyError):
        rank or dist.barrier()


def fails_then(rank):
    try:
        rank or dist.barrier()
    except RuntimeError as error:
        if rank == 0:
            time.sleep(1)
            raise ValueError from error


def exits_then(rank):
    if attempt(dist.barrier) if rank == 0 else "":
        sys.exit(1)


def hangs_then(rank):
    if rank == 0:
        attempt(dist.barrier)
        dist.distributed_c10d._get_default_store().wait(["never"], seconds(10_000_000))


def tries_for_ever(rank):
    while rank == 0:
        attempt(dist.barrier)


def one_of_two_catches(rank):
    if rank == 0:
        attempt(dist.barrier)
    elif rank == 1:
        dist.barrier()


def cleans_up_after_another_error(rank):
    try:
        if rank == 0:
            raise KeyError("first")
    finally:
        if rank == 0:
            dist.barrier()


@ISOLATIONS
@pytest.mark.parametrize(
    "program", [does_not_catch, catches_another, fails_then, exits_then, hangs_then, tries_for_ever, one_of_two_catches]
)
@pytest.mark.parametrize("policy", [None, "random"])
def test_otherwise_the_deadlock_is_reported_as_it_was_found(program, isolation, policy, monkeypatch):
    options = {"policy": policy} if policy else {}
    found = simulate(program, 3, isolation=isolation, **options)
    monkeypatch.setattr(TimeOuts, "list_left_alone", lambda self: [])
    plain = simulate(program, 3, isolation=isolation, **options)
    assert [each.code for each in found.findings] == [Code.DEADLOCK_MISSING_RANK]
    assert str(found) == str(plain)
    for name in ("findings", "trace", "schedule", "waiting", "errors", "virtual_seconds", "returns"):
        assert getattr(found, name) == getattr(plain, name), name


@ISOLATIONS
def test_an_error_on_its_way_out_is_still_told(isolation):
    with contextlib.suppress(ZeroDivisionError):  # of the caller: it is no handler of the program
        result = simulate(cleans_up_after_another_error, 2, isolation=isolation)
    assert [each.code for each in result.findings] == [Code.RANK_ERROR, Code.DEADLOCK_MISSING_RANK]
    assert "KeyError" in result.findings[0].summary


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_an_error_that_a_communication_hook_catches_is_not_raised_again(isolation):
    """As torchft's hooks do; real gloo goes on behind the backward."""

    def train(rank, catches=True):
        group, caught = new_group(1), []

        def hook(_, bucket):
            time.sleep(5 * rank)
            with suppress(RuntimeError) if catches else contextlib.nullcontext():
                dist.all_reduce(bucket.buffer(), group=group, async_op=True).wait()
                caught.append("nothing")
            return done(bucket.buffer())

        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        model.register_comm_hook(None, hook)
        model(torch.ones(1, 1)).sum().backward()
        return caught

    assert simulate(train, 2, isolation=isolation).returns == ([], [])
    assert simulate(partial(train, catches=False), 2, isolation=isolation).returns == (None, None)
