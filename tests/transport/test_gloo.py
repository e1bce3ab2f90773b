"""Transport gloo: real groups move the data, everything else is as on memory, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Code, UsageError, Verdict, replay, simulate
from ddpsim.simulator.transport import gloo
from tests.kit.leftovers import new_files, no_thread_is_left, open_files
from tests.kit.results import returned


def codes(result):
    return [finding.code for finding in result.findings]


def reduce_thirds(rank):
    tensor = torch.full((5,), (rank + 1) / 3)
    dist.all_reduce(tensor)
    return tensor


def test_the_data_goes_through_gloo(monkeypatch):
    sizes = []
    connected = gloo._connect_groups

    def counted(device, size):
        sizes.append(size)
        return connected(device, size)

    monkeypatch.setattr(gloo, "_connect_groups", counted)

    def program(rank):
        pair = dist.new_group([0, 2])
        dist.new_group([0, 1])  # moves nothing, so nobody connects
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 1)
        if rank != 1:
            dist.all_reduce(tensor, group=pair)
        return tensor.item()

    assert simulate(program, 3, transport="memory").returns == (12.0, 6.0, 12.0)
    assert sizes == []
    assert simulate(program, 3, transport="gloo").returns == (12.0, 6.0, 12.0)
    assert sizes == [3, 2]


def test_sums_are_those_of_gloo_and_the_same_in_every_run():
    first, again = (simulate(reduce_thirds, 4, transport="gloo", policy="random", seed=seed) for seed in (0, 1))
    expected = torch.full((5,), 10 / 3)
    for value, other in zip(first.returns, again.returns, strict=True):
        assert torch.allclose(value, expected, rtol=1e-6)
        assert torch.equal(value, other)


def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(1 + rank):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(rank + step))).sum().backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_a_run_takes_the_same_course_as_on_memory(policy):
    memory, on_gloo = (simulate(train, 3, policy=policy, transport=each, seed=3) for each in ("memory", "gloo"))
    assert on_gloo.verdict is Verdict.PASS
    assert on_gloo.trace.digest() == memory.trace.digest()
    assert str(on_gloo.schedule) == str(memory.schedule)
    for mine, theirs in zip(on_gloo.returns, memory.returns, strict=True):
        for parameter, other in zip(mine, theirs, strict=True):
            assert torch.allclose(parameter, other, rtol=1e-6, atol=1e-7)


def test_a_replay_names_its_transport():
    result = simulate(reduce_thirds, 2, transport="gloo")
    assert f"replay(reduce_thirds, 2, \"{result.schedule}\", transport='gloo')" in str(result)
    again = replay(reduce_thirds, 2, result.schedule, transport="gloo")
    assert again.trace.digest() == result.trace.digest()


def other_sizes(rank):
    dist.all_reduce(torch.ones(2 + rank))


def other_operations(rank):
    tensor = torch.ones(2)
    dist.all_reduce(tensor) if rank else dist.broadcast(tensor, 0)


def one_stays_away(rank):
    if rank:
        dist.barrier()


def test_mismatches_and_deadlocks_are_found_before_gloo_sees_them(monkeypatch):
    # gloo would abort the process on the first, and wait for its time-out on the last.
    monkeypatch.setattr(gloo, "_connect_groups", None)
    assert codes(simulate(other_sizes, 2, transport="gloo")) == [Code.MISMATCH_SHAPE]
    assert codes(simulate(other_operations, 2, transport="gloo")) == [Code.MISMATCH_OPERATION]
    assert codes(simulate(one_stays_away, 2, transport="gloo")) == [Code.DEADLOCK_MISSING_RANK]


def refused_then_fine(rank):
    tensor = torch.ones(2)
    factor = dist._make_nccl_premul_sum(2.0)
    errors = []
    for wait in (dist.Work.wait, lambda work: work.get_future().wait()):
        work = dist.all_reduce(tensor, op=factor, async_op=True)
        with pytest.raises(RuntimeError) as error:
            wait(work)
        errors.append(str(error.value).partition("[")[0])
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), RuntimeError)
    dist.all_reduce(tensor)
    return errors, tensor.tolist()


def test_what_gloo_refuses_is_raised_where_a_rank_waits_and_the_group_goes_on():
    for errors, values in returned(refused_then_fine, 3, transport="gloo"):
        assert len(errors) == 2
        assert all("PREMUL_SUM" in error for error in errors)
        assert values == [3.0, 3.0]


def fails_once(rank):
    tensor = torch.ones(2)
    with pytest.raises(ValueError, match="no more sockets"):
        dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    return tensor.tolist()


@pytest.fixture
def broken_broadcast(monkeypatch):
    """The first rank's part of a broadcast begins, the second one's does not."""
    ask = gloo.start_gloo_call

    def broken(operation, group, *arguments):
        if operation == "broadcast" and group.rank() == 1:
            raise ValueError("no more sockets")
        return ask(operation, group, *arguments)

    monkeypatch.setattr(gloo, "start_gloo_call", broken)


@pytest.mark.usefixtures("broken_broadcast")
def test_a_call_that_begins_on_some_ranks_only_is_given_up():
    assert returned(fails_once, 3, transport="gloo") == ([3.0, 3.0],) * 3


def refused_in_backward(rank):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))

    def hook(state, bucket):
        factor = dist._make_nccl_premul_sum(2.0)
        return (
            dist.all_reduce(bucket.buffer(), op=factor, async_op=True).get_future().then(lambda done: done.value()[0])
        )

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()


def test_what_gloo_refuses_inside_a_backward_comes_out_of_it():
    result = simulate(refused_in_backward, 2, transport="gloo")
    assert sorted(result.errors) == [0, 1]
    assert all("PREMUL_SUM" in str(error) for error in result.errors.values())


def _threads():
    return len(list(Path("/proc/self/task").iterdir()))


def _soon(holds):
    """True once it holds: gloo's own threads close what they have, and the system counts those that have ended yet."""
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        os.sched_yield()
    return holds()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads and files are counted in /proc")
@pytest.mark.usefixtures("broken_broadcast")
@pytest.mark.tier("ci")
@pytest.mark.parametrize("program", [train, refused_then_fine, fails_once, other_sizes])
def test_nothing_is_left_behind(program):
    simulate(program, 3, transport="gloo")  # what torch starts once for the process
    gc.collect()
    threads, files = _threads(), open_files()
    with no_thread_is_left():
        simulate(program, 3, transport="gloo")
    gc.collect()
    assert _soon(lambda: new_files(files) == {}), new_files(files)
    assert _soon(lambda: _threads() <= threads)


def test_more_ranks_than_sockets(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    with pytest.raises(UsageError, match=r"needs 272 sockets to connect 17 ranks, .* expected at most 256 in all"):
        simulate(reduce_thirds, 17, transport="gloo")
    assert simulate(reduce_thirds, 8, transport="gloo").verdict is Verdict.PASS


def many_groups(rank):
    groups = [dist.new_group() for _ in range(30)]
    for group in groups:
        dist.barrier(group)


def test_more_groups_than_sockets(monkeypatch):
    limit = len(os.listdir("/dev/fd")) + 150
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, 4096))
    result = simulate(many_groups, 4, transport="gloo")
    assert sorted(result.errors) == [0, 1, 2, 3]
    assert "gloo needs 12 sockets to connect 4 ranks" in str(result.errors[0])
    assert codes(result) == [Code.RANK_ERROR]


def test_ranks_that_cannot_be_connected_hear_why(monkeypatch):
    def refused(device, size):
        raise RuntimeError("connection refused")

    monkeypatch.setattr(gloo, "_connect_groups", refused)
    result = simulate(reduce_thirds, 3, transport="gloo")
    assert [str(result.errors[rank]) for rank in range(3)] == ["connection refused"] * 3
    assert codes(result) == [Code.RANK_ERROR]


def test_a_torch_without_gloo(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(UsageError, match="this torch is built without gloo: use transport='memory'"):
        simulate(reduce_thirds, 2, transport="gloo")
    assert simulate(reduce_thirds, 2).verdict is Verdict.PASS


def test_an_unknown_transport():
    with pytest.raises(UsageError, match="transport is 'nccl', expected 'memory' or 'gloo': give one of these"):
        simulate(reduce_thirds, 2, transport="nccl")
    with pytest.raises(UsageError, match="only run_scenario runs on real processes"):
        simulate(reduce_thirds, 2, transport="processes")
