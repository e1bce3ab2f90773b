"""Calls of a group's methods: as numbers, and in words."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.ddp.collective_table import OPERATIONS
from ddpsim.ddp.collectives import NO_ROOT, Collective, collective_of_call
from tests.kit.rows import rows

CPU = torch.device("cpu")

collectives = st.builds(
    Collective,
    st.sampled_from(OPERATIONS),
    st.sampled_from(["SUM", "MAX", "AVG"]),
    st.integers(NO_ROOT, 5),
    st.sampled_from([torch.float32, torch.int64, torch.bool]),
    st.sampled_from(["cpu", "cuda"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from([(), (3,), (2, 0), (4, 5, 6)]), max_size=30).map(tuple),
)


@given(collectives)
def test_a_collective_survives_as_numbers(collective):
    assert Collective.decode(collective.encode()) == collective


def test_equal_shapes_take_no_more_numbers_than_one():
    one, many = (
        Collective("allgather", "SUM", -1, torch.float32, "cpu", False, False, ((2, 3),) * n) for n in (1, 999)
    )
    assert len(one.encode()) == len(many.encode())


def options(reduction=dist.ReduceOp.SUM, root=0):
    return SimpleNamespace(reduceOp=reduction, rootRank=root)


F = torch.zeros(2, 3)
WHOLE = torch.zeros(4, dtype=torch.int64)


@rows(
    ("operation", "arguments", "text"),
    [
        ("allreduce", ([F], options()), "all_reduce SUM float32[2, 3]"),
        ("allreduce", ([WHOLE], options(dist.ReduceOp.MAX)), "all_reduce MAX int64[4]"),
        ("allreduce", (F,), "all_reduce SUM float32[2, 3]"),
        ("allreduce", ([F], dist.ReduceOp.MIN), "all_reduce MIN float32[2, 3]"),
        ("allreduce_coalesced", ([F, F, F[0]], options()), "all_reduce_coalesced SUM float32[2, 3] x 2 float32[3]"),
        ("broadcast", ([F], options(root=1)), "broadcast float32[2, 3] root 1"),
        ("broadcast", (F, 1), "broadcast float32[2, 3] root 1"),
        ("reduce", ([F], options(dist.ReduceOp.MAX, 2)), "reduce MAX float32[2, 3] root 2"),
        ("allgather", ([[F, F]], [F], None), "all_gather float32[2, 3]"),
        ("_allgather_base", (torch.zeros(4, 3), F, None), "all_gather_into_tensor float32[2, 3]"),
        ("reduce_scatter", ([F], [[F, F]], options()), "reduce_scatter SUM float32[2, 3] x 2"),
        ("_reduce_scatter_base", (F[:1], F, options()), "reduce_scatter_tensor SUM float32[2, 3]"),
        ("gather", ([], [F], options(root=1)), "gather float32[2, 3] root 1"),
        ("scatter", ([F], [], options(root=1)), "scatter float32[2, 3] root 1"),
        ("alltoall", ([F, F], [F, F], None), "all_to_all float32[2, 3] x 2"),
        ("alltoall_base", (F, F, [], [], None), "all_to_all_single float32[2, 3]"),
        ("all_to_all_single", (F, F, [1, 1], [1, 1], None), "all_to_all_single float32[2, 3]"),
        ("barrier", (None,), "barrier"),
        ("monitored_barrier", (None,), "monitored_barrier"),
    ],
)
def test_calls_in_words(operation, arguments, text):
    assert str(collective_of_call(operation, arguments)) == text


@rows(
    ("operation", "arguments"),
    [
        ("send", ([F], 1, 0)),
        ("recv", ([F], 1, 0)),
        ("recv_anysource", ([F], 0)),
        ("_start_coalescing", (CPU,)),
        ("alltoall_base", (F, F, [2, 0], [2, 0], None)),
        ("alltoall_base", (F[:1], F, [], [], None)),
        ("alltoall", ([F, F[0]], [F, F[0]], None)),
        ("alltoall", ([F[0], F[0]], [F, F], None)),
        ("allreduce", ([F.to(torch.float8_e4m3fn)], options())),
        ("allreduce_coalesced", ([F, WHOLE], options())),
        ("allreduce", ([F.to("meta")], options())),
        ("allreduce", (None,)),
        ("broadcast", ([F],)),
    ],
    ids=str,
)
def test_what_nobody_can_take_part_in(operation, arguments):
    assert collective_of_call(operation, arguments) is None
