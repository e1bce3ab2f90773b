"""Messages, beyond the table in tests/semantics: what real gloo cannot do, and what it lets pass."""

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from ddpsim.simulator.events import EventKind
from tests.kit.results import codes, returned


def test_a_rank_that_waits_for_its_own_message_is_its_own_cycle():
    def program(rank):
        group = dist.new_group(backend="cpu:gloo,cuda:nccl")  # gloo alone refuses such messages
        if rank == 1:
            dist.recv(torch.zeros(1), rank, group=group)

    assert codes(simulate(program, 2)) == [("deadlock.cycle", (1,))]


@pytest.mark.parametrize("receiver_is_first", [True, False])
def test_the_trace_says_whose_message_a_receive_from_any_source_took(receiver_is_first):
    def program(rank):
        received = torch.zeros(1)
        if rank == 0:
            if not receiver_is_first:
                dist.barrier()
            return [dist.recv(received) for _ in range(2)]
        dist.isend(torch.ones(1), 0).wait() if receiver_is_first else dist.isend(torch.ones(1), 0)
        if not receiver_is_first:
            dist.barrier()
        return []

    result = simulate(program, 3)
    taken = [f"from rank {source}" for source in result.returns[0]]
    assert sorted(taken) == ["from rank 1", "from rank 2"]
    matches = [event for event in result.trace if event.kind is EventKind.MATCH and event.call.is_point_to_point]
    assert [event.text for event in matches] == taken


def test_a_receive_from_one_source_says_no_more():
    def program(rank):
        dist.recv(torch.zeros(1), 1) if rank == 0 else dist.send(torch.ones(1), 0)

    matches = [event for event in simulate(program, 2).trace if event.kind is EventKind.MATCH]
    assert [event.text for event in matches] == [""]


@pytest.mark.parametrize("operation", ["isend", "irecv"])
def test_a_rank_outside_the_group(operation):
    def program(rank):
        with pytest.raises(RuntimeError, match=f"{operation[1:]}: invalid rank: 5"):
            getattr(dist, operation)(torch.zeros(1), 5)

    returned(program)
