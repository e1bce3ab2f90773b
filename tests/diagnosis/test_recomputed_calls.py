"""Calls that torch.utils.checkpoint makes again when it runs a block a second time, in backward, on some ranks only."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from ddpsim import Verdict, simulate
from ddpsim.simulator.events import EventKind

from .ending import end

AGAIN = (
    "again, when torch.utils.checkpoint recomputed a block in backward, and the other side has made none again in this "
    "way: it recomputes no such block, or the sides made different calls before"
)
REMEDY = (
    "keep calls that communicate out of checkpointed blocks, or let all ranks of such a call recompute alike; make the "
    "same calls before on every rank"
)


class Passed(torch.autograd.Function):
    """A state that rank 0 sends to rank 1, and its gradient, which comes back."""

    @staticmethod
    def forward(ctx, state):
        if dist.get_rank() == 0:
            dist.send(state.detach(), 1)
        else:
            state = torch.empty_like(state)
            dist.recv(state, 0)
        return state.clone()

    @staticmethod
    def backward(ctx, grad):
        if dist.get_rank() == 0:
            dist.recv(grad.clone(), 1)
        else:
            dist.send(grad.contiguous(), 0)
        return grad


class ReceivedAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, state):
        state = torch.empty_like(state)
        dist.recv(state, 0)
        return state

    @staticmethod
    def backward(ctx, grad):
        return grad


class Summed(torch.autograd.Function):
    """A sum over ranks, whose gradient each rank keeps for itself."""

    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


def line(function, number):
    return f"test_recomputed_calls.py:{function.__code__.co_firstlineno + number}"


def block(function, weight):
    return torch.tanh(function.apply(weight * 2)) * weight


def trains(rank, *, function, checkpointed, reentrant=False, ends_with=None):
    weight = torch.ones(2, requires_grad=True)
    for _ in range(2):
        run = partial(block, function)
        out = checkpoint(run, weight, use_reentrant=reentrant) if rank in checkpointed else run(weight)
        out.sum().backward()
        if ends_with is not None:
            ends_with()


def found(**options):
    (finding,) = simulate(partial(trains, **options), 2).findings
    return finding


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("rank", "number", "title"), [(0, 3, "send #1"), (1, 6, "recv #1")])
def test_a_message_that_one_side_makes_again(reentrant, rank, number, title):
    finding = found(function=Passed, checkpointed=[rank], reentrant=reentrant)
    assert finding.code == "deadlock.cycle"
    assert finding.ranks == (rank,)
    assert end(finding) == (f"rank {rank} made {title} at {line(Passed.forward, number)} {AGAIN}", REMEDY)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_collective_that_the_others_do_not_make_again(reentrant):
    options = {"function": Summed, "checkpointed": [1], "reentrant": reentrant}
    cause = f"rank 1 made all_reduce #1 at {line(Summed.forward, 3)} {AGAIN}"
    deadlock, mismatch = found(**options), found(**options, ends_with=lambda: dist.barrier())
    assert (deadlock.code, deadlock.ranks, end(deadlock)) == ("deadlock.missing_rank", (1,), (cause, REMEDY))
    assert (mismatch.code, end(mismatch)) == ("mismatch.operation", (cause, REMEDY))


def test_a_message_that_does_not_fit_the_recomputation_that_took_it():
    def program(rank):
        if rank == 0:
            for size in (2, 3):
                dist.send(torch.ones(size), 1)
            return
        weight = torch.ones(2, requires_grad=True)
        checkpoint(block, ReceivedAlone, weight, use_reentrant=False).sum().backward()

    (finding,) = simulate(program, 2).findings
    assert finding.code == "mismatch.shape"
    assert end(finding) == (f"rank 1 made recv #1 at {line(ReceivedAlone.forward, 3)} {AGAIN}", REMEDY)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("function", "checkpointed"), [(Passed, [0, 1]), (Passed, []), (Summed, [0, 1]), (Summed, [])])
def test_all_ranks_alike(reentrant, function, checkpointed):
    result = simulate(partial(trains, function=function, checkpointed=checkpointed, reentrant=reentrant), 2)
    assert result.verdict is Verdict.PASS
    made = [each.call for each in result.trace if each.kind is EventKind.ISSUE and each.rank == 1]
    again = [call.origin.is_recomputed for call in made]
    assert sum(again) == (2 if checkpointed else 0)
    assert again[:2] == [False, bool(checkpointed)] or function is Passed


def test_a_message_of_the_next_micro_batch_that_a_recomputation_took():
    """Rank 1 waits in a receive of its own, as its recomputation took the message that was for it."""

    def program(rank):
        weight = torch.ones(2, requires_grad=True)
        for batch in range(2):
            if rank == 0:
                dist.send(torch.ones(2), 1)
                continue
            out = checkpoint(block, ReceivedAlone, weight, use_reentrant=False)
            out.sum().backward()
            assert batch < 2

    finding, *_ = simulate(program, 2).findings
    assert finding.ranks == (1,)
    assert end(finding) == (f"rank 1 made recv #1 at {line(ReceivedAlone.forward, 3)} {AGAIN}", REMEDY)


def test_a_call_of_another_group_keeps_the_others_from_their_own():
    """All would recompute: rank 0 has not come to it."""

    def program(rank):
        other = dist.new_group()
        weight = torch.ones(2, requires_grad=True)
        out = checkpoint(block, Summed, weight, use_reentrant=False)
        if rank == 0:
            dist.barrier(group=other)
        out.sum().backward()

    (finding,) = simulate(program, 2).findings
    assert finding.code == "deadlock.cycle"
    assert "in different orders" in end(finding)[0]


def test_ranks_that_recompute_alike_differ_for_another_reason():
    def program(rank):
        trains(rank, function=Summed, checkpointed=[0, 1])
        if rank == 0:
            dist.barrier()

    (finding,) = simulate(program, 2).findings
    assert end(finding)[0] == "rank 1 returned without making barrier #4"
