"""Contributions that change nothing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from ddpsim.ddp import collectives
from ddpsim.ddp.collective_table import TABLE
from ddpsim.ddp.collectives import NO_ROOT, Collective, collective_of_call, make_neutral_collective
from tests.kit.results import returned
from tests.kit.rows import rows

CPU = torch.device("cpu")

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMBINE = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@rows(
    ("reduction", "dtype"),
    [
        *(
            (reduction, dtype)
            for reduction in ("SUM", "AVG", "PREMUL_SUM", "PRODUCT")
            for dtype in (*FLOATS, *INTEGERS)
        ),
        *((reduction, dtype) for reduction in ("MIN", "MAX") for dtype in (*FLOATS, *INTEGERS, torch.bool)),
        *((reduction, dtype) for reduction in ("BAND", "BOR", "BXOR") for dtype in (*INTEGERS, torch.bool)),
        *((reduction, torch.complex64) for reduction in ("SUM", "PRODUCT")),
    ],
    ids=str,
)
def test_a_neutral_contribution_changes_nothing(reduction, dtype):
    if dtype is torch.bool:
        values = torch.tensor([True, False])
    elif dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        values = torch.tensor([limits.min, limits.max, 0, 5], dtype=dtype)
    else:
        values = torch.tensor([-2.5, 0, 3]).to(dtype)
    collective = Collective("allreduce", reduction, NO_ROOT, dtype, "cpu", False, False, (tuple(values.shape),))
    contribution = collectives._neutral_tensor(collective, collective.shapes[0], CPU)
    assert torch.equal(COMBINE[reduction](values, contribution), values)


def test_floats_that_are_infinite_stay():
    for reduction, value in (("MAX", float("-inf")), ("MIN", float("inf"))):
        collective = Collective("allreduce", reduction, NO_ROOT, torch.float32, "cpu", False, False, ((1,),))
        contribution = collectives._neutral_tensor(collective, (1,), CPU)
        assert COMBINE[reduction](torch.tensor([value]), contribution).item() == value


def on_two_ranks(collective, call):
    """Rank 0 makes the call, and rank 1 takes part; return what rank 0 has."""

    def program(rank):
        return call() if rank == 0 else make_neutral_collective(collective, dist.group.WORLD, CPU)

    return returned(program, 2)[0]


def test_sparse_sums():
    def call():
        own = sparse()
        dist.all_reduce(own)
        return own.to_dense().tolist()

    def sparse():
        return torch.sparse_coo_tensor([[1]], [[2.0, 3.0]], (4, 2), check_invariants=True)

    assert on_two_ranks(collective_of_call("allreduce", ([sparse()],)), call) == [[0, 0], [2, 3], [0, 0], [0, 0]]


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
def test_gathering_into_one_tensor(shape):
    def call():
        own = torch.ones(shape)
        rows, *rest = shape
        whole = torch.full((2 * rows, *rest), 5.0)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        gather(whole, own)
        return whole.chunk(2)

    first, second = on_two_ranks(collective_of_call("all_gather_single", (None, torch.ones(shape))), call)
    assert first.eq(1).all()
    assert second.eq(0).all()


def test_monitored_barrier():
    on_two_ranks(collective_of_call("monitored_barrier", ()), dist.monitored_barrier)


def test_every_collective_that_joined_ranks_are_told_of_is_made():
    assert not [row.name for row in TABLE.values() if (row.contribution is None) != (row.take is None)]
