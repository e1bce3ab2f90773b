"""Works: waiting in virtual time, polling, futures and their chains, results, errors."""

import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Verdict, simulate
from tests.kit.futures import FUTURES, future_of
from tests.kit.results import codes, returned
from tests.tiers import sweep


def ones(rank):
    return torch.full((2,), float(rank + 1))


def test_a_wait_times_out_in_virtual_time_and_can_be_taken_up_again():
    def program(rank):
        tensor = ones(rank)
        if rank == 1:
            time.sleep(10)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            with pytest.raises(RuntimeError, match="Operation timed out!"):
                work.wait(timedelta(seconds=4))
            assert time.monotonic() == pytest.approx(4, abs=0.1)
        work.wait()
        return tensor.tolist()

    start = time.monotonic()
    assert returned(program) == ([3.0, 3.0],) * 2
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_message_that_nobody_takes_or_sends_times_out(operation):
    def program(rank):
        if rank == 0:
            work = getattr(dist, f"i{operation}")(torch.zeros(1), 1)
            with pytest.raises(RuntimeError, match=f"Timed out waiting 1500ms for {operation} operation to complete"):
                work.wait(timedelta(seconds=1.5))

    returned(program)


def test_a_future_before_and_after_the_completion():
    def program(rank):
        tensor = ones(rank)
        work = dist.all_reduce(tensor, async_op=True)
        early = work.get_future()
        (value,) = early.wait()
        work.wait()
        (again,) = work.get_future().value()
        return value is tensor, again is tensor, early.done(), work.is_success(), work.exception()

    assert returned(program) == ((True, True, True, True, None),) * 2


def test_a_chain_runs_on_the_thread_of_its_rank():
    def program(rank):
        threads = []

        def note(future):
            threads.append(threading.get_ident())
            return future.value()[0] * 10

        def add(future):
            threads.append(threading.get_ident())
            return future.value() + 1

        future = dist.all_reduce(ones(rank), async_op=True).get_future().then(note).then(add)
        assert future.wait().tolist() == [31.0, 31.0]
        return threads == [threading.get_ident()] * 2

    assert returned(program) == (True, True)


def look(rank, *, kind):
    return future_of(dist.all_reduce(torch.ones(3), async_op=True), kind).done()


def look_until_done(rank, *, kind):
    future, looks = future_of(dist.all_reduce(torch.ones(3), async_op=True), kind), 0
    while not future.done():
        looks += 1
    return looks


def came_to(program, isolation, seed):
    result = simulate(program, 2, isolation=isolation, policy="random" if seed else "round_robin", seed=seed)
    result.raise_for_verdict()
    return result.returns, result.trace.digest(), str(result.schedule), codes(result)


@pytest.mark.parametrize("kind", FUTURES)
def test_whoever_looks_at_a_future_again_and_again_finds_it_done(kind):
    assert returned(partial(look, kind=kind)) == (True, True)
    assert returned(partial(look_until_done, kind=kind)) == (0, 0)


@pytest.mark.parametrize("kind", FUTURES)
def test_a_look_at_what_is_complete_is_not_in_vain(kind):
    result = simulate(partial(look, kind=kind), 1)
    assert result.returns == (True,)
    assert result.virtual_seconds == 0  # which would pass if all ranks looked in vain


@pytest.mark.parametrize("seed", sweep(range(12), lambda seed: seed == 2))
@pytest.mark.parametrize("kind", FUTURES)
def test_a_look_at_a_future_comes_to_the_same_in_processes(kind, seed):
    for program in (partial(look, kind=kind), partial(look_until_done, kind=kind)):
        assert came_to(program, "process", seed) == came_to(program, "thread", seed)


@pytest.mark.parametrize("kind", [*FUTURES, "of nobody"])
def test_a_loop_over_a_future_that_is_never_done_meets_a_budget(kind):
    def program(rank):
        if rank == 0:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            future = torch.futures.Future() if kind == "of nobody" else future_of(work, kind)
            while not future.done():
                pass

    result = simulate(program, 2, budget=Budget(steps=3_000, seconds=30))
    assert result.verdict is Verdict.UNKNOWN
    assert "took more than 3000 steps" in str(result)


def test_a_future_that_another_thread_sets_is_done_in_the_end():
    def program(rank):
        future = torch.futures.Future()
        thread = threading.Thread(target=lambda: future.set_result(rank))
        thread.start()
        while not future.done():
            pass
        thread.join()
        return future.value()

    assert returned(program) == (0, 1)


@pytest.mark.parametrize("has_own", [False, True], ids=["no call of its own", "one that is complete"])
def test_another_ranks_work_is_no_call_of_ones_own(has_own):
    """Nobody tells a rank that another one's call is complete; it must not pass for an own call of that number."""
    works = {}

    def program(rank):
        if rank == 1 and has_own:
            dist.send(torch.ones(1), 2)
        if rank == 0:
            works[0] = dist.barrier(async_op=True)
            time.sleep(1)
            works[0].wait()
        elif rank == 1:
            time.sleep(0.5)
            works[0].wait()
        elif has_own:
            dist.recv(torch.ones(1), 1)

    result = simulate(program, 3)
    found = [(str(finding.code), finding.ranks) for finding in result.findings]
    assert found == [("deadlock.cycle", (1,)), ("deadlock.missing_rank", (2,))]


def test_another_ranks_work_can_be_looked_at():
    works, seen = {}, []

    def program(rank):
        work = dist.barrier(async_op=True)
        works[rank] = work
        time.sleep(1 - rank)
        seen.append(works[1 - rank].is_completed())
        work.wait()

    assert simulate(program, 2).findings == ()
    assert seen == [True, True]


def test_only_a_receive_has_a_source():
    def program(rank):
        with pytest.raises(RuntimeError, match=r"sourceRank\(\) may only be called on work objects"):
            dist.barrier(async_op=True).source_rank()

    returned(program, 1)


def test_what_the_backend_refuses_late_is_kept_from_the_others():
    """Each wait raises it; see the late errors of tests/semantics/works.py."""

    def program(rank):
        work = dist.all_reduce(torch.zeros(2, dtype=torch.int16), async_op=True)
        dist.barrier()
        return work.is_success(), str(work.exception())

    assert returned(program) == ((False, "Invalid scalar type"),) * 2


def test_coalesced_calls_are_one_work():
    def program(rank):
        group, device = dist.group.WORLD, torch.device("cpu")
        first, second = ones(rank), torch.zeros(2)
        group._start_coalescing(device)
        dist.all_reduce(first, async_op=True)
        dist.isend(ones(rank), 1 - rank)
        dist.irecv(second, 1 - rank)
        work = group._end_coalescing(device)
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert len(work.result()) == len(work.get_future().wait()) == 3
        return first.tolist(), second.tolist()

    assert returned(program, backend_semantics="nccl") == (([3.0, 3.0], [2.0, 2.0]), ([3.0, 3.0], [1.0, 1.0]))


def test_coalescing_begins_before_it_ends_and_once():
    def program(rank):
        group, device = dist.group.WORLD, torch.device("cpu")
        with pytest.raises(RuntimeError, match="has not been started"):
            group._end_coalescing(device)
        group._start_coalescing(device)
        with pytest.raises(RuntimeError, match="has been started already"):
            group._start_coalescing(device)
        group._end_coalescing(device).wait()

    returned(program, 1, backend_semantics="nccl")


def test_gloo_collects_no_calls():
    def program(rank):
        group, device = dist.group.WORLD, torch.device("cpu")
        with pytest.raises(RuntimeError, match="Backend gloo does not implement endCoalescing"):
            group._end_coalescing(device)
        tensors = [ones(rank), ones(rank)]
        with dist._coalescing_manager():  # without a device, torch itself collects the calls
            for tensor in tensors:
                dist.all_reduce(tensor)
        with dist._coalescing_manager(device=device, async_ops=True):
            dist.all_reduce(tensors[0])

    result = simulate(program, 2)
    texts = [str(error) for error in result.errors.values()]
    assert texts == ["Backend gloo does not implement startCoalescing"] * 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_loop_that_polls_a_message_never_ends_on_gloo(waits):
    """As a real group's does: is_completed() of a message becomes True in wait() alone (pytorch#30723)."""

    def program(rank):
        if rank == 1:
            dist.send(torch.ones(1), 0)
            return
        work = dist.irecv(torch.zeros(1), 1)
        looks = 0
        while not work.is_completed():
            time.sleep(0.2)
            looks += 1
            if waits and looks == 100:
                work.wait()

    result = simulate(program, 2)
    assert codes(result) == ([] if waits else [("stuck", (0,))])
    assert waits or "stays False until wait()" in result.findings[0].text
    assert simulate(program, 2, backend_semantics="nccl").verdict is Verdict.PASS
