"""A rank's calls one after another, as backends with streams run them: scripts of requests, both ways around."""

import pytest

from ddpsim.simulator.backend_semantics import BACKENDS
from ddpsim.simulator.kernel.requests import CloseBatch, OpenBatch, Sleep, WaitFor
from tests.kernel.scripted import Host, Rank


def run(programs, name):
    return Host(programs, semantics=BACKENDS[name])


def test_the_next_unit_waits_for_all_of_a_batch():
    """Rank 0's second batch would meet rank 1's only message at once, were its first one not open."""

    def two_batches(me):
        yield OpenBatch()
        yield from me.issue("send", peer=2)
        yield CloseBatch()
        yield OpenBatch()
        handle = yield from me.issue("send", peer=1)
        yield CloseBatch()
        yield WaitFor((handle,), None)

    def others():
        return [Rank(1, 3).call("recv", peer=0), Rank(2, 3).call("barrier")]

    host = run([two_batches(Rank(0, 3)), *others()], "nccl")
    assert host.done("moved") == []
    assert "queued behind send #0 at train.py:11" in str(host.run.findings[0])
    assert len(run([two_batches(Rank(0, 3)), *others()], "gloo").done("moved")) == 1


def test_a_collective_before_a_message_on_one_rank_and_after_it_on_the_other():
    def program(rank):
        me = Rank(rank, 2)
        order = ["all_reduce", "send"] if rank == 0 else ["recv", "all_reduce"]
        handles = []
        for operation in order:
            peer = None if operation == "all_reduce" else 1 - rank
            handles.append((yield from me.issue(operation, peer=peer)))
        for handle in handles:
            yield WaitFor((handle,), None)

    assert run([program(0), program(1)], "gloo").codes == []
    host = run([program(0), program(1)], "nccl")
    assert host.codes == ["deadlock.cycle"]
    text = str(host.run.findings[0])
    assert 'rank 0 began with all_reduce on "default" at train.py:11, rank 1 began with recv on "default"' in text


def test_many_queued_calls_start_one_after_another():
    """Not one inside another: 2,000 would be too deep."""

    def first_from_0(rank, operation):
        me = Rank(rank, 3)
        handles = [(yield from me.issue("recv", peer=0))]
        for _ in range(2_000):
            handles.append((yield from me.issue(operation, peer=3 - rank)))
        for handle in handles:
            yield WaitFor((handle,), None)

    def late():
        me = Rank(0, 3)
        yield Sleep(1.0)
        for peer in (2, 1):
            yield from me.call("send", peer=peer)

    host = run([late(), first_from_0(1, "send"), first_from_0(2, "recv")], "nccl")
    assert host.codes == []
    assert len(host.done("moved")) == 2_002


def left_behind(peer, before=()):
    """A program that makes the calls before, then one that it does not wait for."""

    def program(rank, world_size):
        me = Rank(rank, world_size)
        for operation in before:
            yield from me.call(operation)
        yield from me.issue("send" if peer is not None else "all_reduce", peer=peer)

    return program


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("peer", [None, 1], ids=["collective", "message"])
@pytest.mark.parametrize("before", [(), ("barrier",)], ids=["first call", "connected"])
def test_a_call_that_a_rank_leaves_behind(name, peer, before):
    def late(me):
        for operation in before:
            yield from me.call(operation)
        yield Sleep(1.0)
        yield from me.call("all_reduce" if peer is None else "recv", peer=None if peer is None else 0)

    host = run([left_behind(peer, before)(0, 2), late(Rank(1, 2))], name)
    if name == "lazy-connect" and not before:
        assert host.codes == ["deadlock.missing_rank"]
        assert "rank 0 made the call, did not wait for it, and ended before" in str(host.run.findings[0])
    else:
        assert host.codes == []


def test_a_message_that_was_not_sent_is_not_left_behind():
    host = run([Rank(0, 2).call("send", peer=1), two_receives(Rank(1, 2))], "lazy-connect")
    assert host.codes == ["deadlock.missing_rank"]
    assert "did not wait" not in str(host.run.findings[0])


def two_receives(me):
    for _ in range(2):
        yield from me.call("recv", peer=0)
