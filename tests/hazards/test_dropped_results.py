"""Results that are written into a copy which the call's own line makes, and which nobody holds."""

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from tests.kit.rows import rows

both = pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])


def broadcast_of_a_number(rank):
    seed = 7 - rank
    dist.broadcast(torch.tensor(seed), src=0)
    return seed


def broadcast_of_numbers(rank):
    low, high = 5 - rank, 8 + rank
    dist.broadcast(torch.tensor([low, high], dtype=torch.float64).float(), 0)
    dist.barrier()


def reduced_transpose(rank):
    x = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(x.contiguous())
    return x


def reduced_in_double(rank):
    x = torch.ones(3)
    for _ in range(2):
        dist.all_reduce(x.detach().to(torch.float64))
    dist.barrier()


def reduced_gradient(rank):
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    dist.reduce(model.weight.grad.double(), dst=1)


def scattered(rank):
    x = torch.zeros(2)
    dist.scatter(x.double(), [torch.ones(2).double()] * 2 if rank == 0 else None, src=0)


def received(rank):
    x = torch.zeros(2, dtype=torch.float64)
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    else:
        dist.recv(x.float(), src=0)


BOTH = "ranks 0, 1: the result of"
FOUND = [
    (broadcast_of_a_number, (1,), "rank 1: the result of broadcast #0 is in a copy of seed, which nobody holds"),
    (broadcast_of_numbers, (1,), "rank 1: the result of broadcast #0 is in a copy of [low, high], which nobody holds"),
    (reduced_transpose, (0, 1), f"{BOTH} 2 calls of all_reduce is in a copy of x, which nobody holds"),
    (
        reduced_in_double,
        (0, 1),
        f"{BOTH} 4 calls of all_reduce is in a copy of x, which nobody holds",
    ),
    (reduced_gradient, (1,), "rank 1: the result of reduce #0 is in a copy of model.weight.grad, which nobody holds"),
    (scattered, (0, 1), f"{BOTH} 2 calls of scatter is in a copy of x, which nobody holds"),
    (received, (1,), "rank 1: the result of recv #0 is in a copy of x, which nobody holds"),
]


@both
@rows(("program", "ranks", "fact"), FOUND)
def test_a_result_that_nobody_holds_is_told(program, ranks, fact, isolation):
    found = [each for each in simulate(program, 2, isolation=isolation).findings if each.code != "hazard.call_site"]
    assert [(each.code, each.ranks) for each in found] == [("hazard.dropped_result", ranks)]
    assert found[0].summary.rpartition(" (")[0] == fact


def barriers_in_other_words(rank):
    device = "cpu"
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.zeros(1, device=device), src=0)
    dist.all_reduce(torch.tensor(1.0, device=device))
    dist.all_reduce(torch.tensor([rank]).float())
    dist.broadcast(torch.tensor(rank), src=0)


def same_value_everywhere(rank):
    seed, x = 7, torch.ones(2)
    dist.broadcast(torch.tensor(seed), src=0)
    dist.all_reduce(x.double(), op=dist.ReduceOp.MAX)


def no_copy(rank):
    x = torch.ones(2, 2)
    dist.all_reduce(x.contiguous())
    dist.all_reduce(x.view(-1).to(torch.float32))
    dist.all_reduce(x.detach())
    dist.all_reduce(x[0].contiguous())
    model, parts = torch.nn.Linear(2, 1), {"x": [x]}
    dist.all_reduce(model.weight.data.contiguous())
    dist.all_reduce(parts["x"][0].to("cpu"))


def no_copy_of_what_is_dropped(rank):
    def reduce(x):
        dist.all_reduce(x.contiguous())

    reduce(torch.ones(2))
    dist.barrier()


def clone_on_purpose(rank):
    x = torch.ones(2)
    dist.all_reduce(x.clone())
    dist.barrier()


def copy_with_a_name(rank):
    x = torch.ones(2)
    copy = x.float().double()
    dist.all_reduce(copy)
    dist.all_reduce(kept := x.double())
    return copy, kept


def held_by_another_name(rank):
    x, kept = torch.ones(2), []

    class Keeping:
        def double(self):
            kept.append(x.double())
            return kept[-1]

    own = Keeping()
    dist.all_reduce(own.double())  # type: ignore[arg-type]
    dist.barrier()


def result_of_a_handle(rank):
    x = torch.ones(2)
    work = dist.all_reduce(x.double(), async_op=True)
    work.wait()


CLEAN = [
    barriers_in_other_words,
    same_value_everywhere,
    no_copy,
    no_copy_of_what_is_dropped,
    clone_on_purpose,
    copy_with_a_name,
    held_by_another_name,
    result_of_a_handle,
]


@both
@pytest.mark.parametrize("program", CLEAN)
def test_a_barrier_and_a_result_that_is_held_are_none(program, isolation):
    assert simulate(program, 2, isolation=isolation).findings == ()
