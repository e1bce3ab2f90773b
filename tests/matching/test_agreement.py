"""What must agree across the ranks of a call, and what need not: both directions for each operation."""

import pytest

from ddpsim.simulator.calls import NOWHERE, USER_ORIGIN, Call, CallPart, Origin, Parallelism, Phase, Signature, Site
from ddpsim.simulator.matching.agreement import (
    are_unusual_lines_matched,
    call_sites_differ,
    first_differing_field,
    message_differing_field,
    ranks_that_differ,
)
from ddpsim.simulator.verdict import Code
from tests.kit.rows import rows


def calls(*signatures, origins=None, sites=None):
    """The calls of ranks 0, 1, ... of one slot."""
    sites, origins = sites or [NOWHERE] * len(signatures), origins or [USER_ORIGIN] * len(signatures)
    each = enumerate(zip(signatures, sites, origins, strict=True))
    return [Call(rank, "g", 0, signature, site, origin) for rank, (signature, site, origin) in each]


def reduced(*shapes, dtype="float32", reduction="SUM", operation="all_reduce"):
    return Signature(operation, tuple(shapes), dtype, reduction)


def moved(operation, *shapes, dtype="float32", root=None):
    return Signature(operation, tuple(shapes), dtype, root=root)


def exchanged(sent, received, *, row=(), received_row=None):
    shapes = ((sum(sent), *row), (sum(received), *(row if received_row is None else received_row)))
    return Signature("all_to_all_single", shapes, "float32", splits=(tuple(sent), tuple(received)))


def listed(sent, received):
    return Signature("all_to_all", tuple((n,) for n in sent), "float32", splits=(tuple(sent), tuple(received)))


AGREEING = {
    "one-element-in-two-shapes": (reduced(()), reduced((1,))),
    "all_reduce": [reduced((4,))] * 3,
    "all_reduce_coalesced": [reduced((2,), (3,), operation="all_reduce_coalesced")] * 2,
    "reduce_scatter-uneven-list": [reduced((1,), (3,), operation="reduce_scatter")] * 2,
    "all_to_all-uneven": [listed([1, 2], [1, 3]), listed([3, 4], [2, 4])],
    "all_to_all_single-even": [exchanged([1, 1, 1], [1, 1, 1])] * 3,
    "all_to_all_single-uneven": [exchanged([0, 1], [0, 1]), exchanged([1, 2], [1, 2])],
    "all_to_all_single-other-rows-same-elements": [
        exchanged([2, 2], [2, 2], row=(3,)),
        exchanged([3, 3], [3, 3], row=(2,)),
    ],
    "all_to_all_single-received-flat": [
        exchanged([1, 1], [4, 4], row=(4,), received_row=()),
        exchanged([4, 4], [1, 1], row=(), received_row=(4,)),
    ],
}


@rows("signatures", AGREEING.values(), ids=AGREEING)
def test_agree(signatures):
    assert first_differing_field(calls(*signatures)) is None


def coalesced(*shapes):
    return reduced(*shapes, operation="all_reduce_coalesced")


def scattered(*shapes):
    return reduced(*shapes, operation="reduce_scatter")


def broadcast(*shape, root=0):
    return moved("broadcast", shape, root=root)


def creating(*members):
    return Signature("new_group", members=members)


SUM = reduced((4,))
SPARSE = reduced((2, 3), dtype="sparse float32")

DISAGREEING = {
    Code.MISMATCH_OPERATION: {
        "operation": (SUM, broadcast(4)),
        "operation-before-everything": (SUM, moved("all_gather", (5,), dtype="int64")),
        "barriers-of-two-kinds": (Signature("barrier"), Signature("monitored_barrier")),
        "single-and-coalesced": (reduced((2,)), coalesced((2,))),
    },
    Code.MISMATCH_REDUCTION: {
        "reduction": (SUM, reduced((4,), reduction="MAX")),
    },
    Code.MISMATCH_DTYPE: {
        "dtype": (SUM, reduced((4,), dtype="float64")),
        "sparse-and-dense": (SUM, reduced((4,), dtype="sparse float32")),
        "splits-dtype": (exchanged([1, 1], [1, 1]), exchanged([1, 1], [1, 1])._replace(dtype="int64")),
    },
    Code.MISMATCH_SHAPE: {
        "shape-all_reduce": (SUM, reduced((5,))),
        "shape-same-count": (reduced((2, 3)), reduced((3, 2))),
        "shape-same-count-broadcast": (broadcast(4), broadcast(2, 2)),
        "shape-sparse": (SPARSE, SPARSE._replace(shapes=((3, 2),))),
        "shape-reduce_scatter": (scattered((1,), (3,)), scattered((3,), (1,))),
        "coalesced-length": (coalesced((2,), (3,)), coalesced((2,))),
        "coalesced-order": (coalesced((2,), (3,)), coalesced((3,), (2,))),
        "coalesced-cut": (coalesced((4,)), coalesced((2,), (2,))),
        "splits-row-size": (exchanged([2, 2], [2, 2], row=(3,)), exchanged([2, 2], [2, 2], row=(4,))),
    },
    Code.MISMATCH_ROOT: {
        "root-broadcast": (broadcast(4), broadcast(4, root=1)),
        "root-before-shape": (moved("gather", (4,), root=0), moved("gather", (5,), root=1)),
    },
    Code.MISMATCH_GROUP: {
        "members": (creating(0, 1), creating(0, 1, 2)),
        "members-order": (creating(0, 1), creating(1, 0)),
    },
    Code.MISMATCH_SPLITS: {
        "splits": (exchanged([2, 2], [2, 2]), exchanged([1, 3], [2, 2])),
        "splits-of-a-list": (listed([1, 2], [1, 3]), listed([4, 4], [2, 4])),
    },
}


@pytest.mark.parametrize(
    ("code", "signatures"),
    [pytest.param(code, pair, id=name) for code, pairs in DISAGREEING.items() for name, pair in pairs.items()],
)
def test_disagree(code, signatures):
    assert first_differing_field(calls(*signatures)) is code
    assert first_differing_field(calls(*reversed(signatures))) is code


def test_splits_are_not_judged_before_everybody_is_here():
    assert first_differing_field(calls(exchanged([1, 1, 1], [1, 1, 1]), exchanged([2, 2, 2], [2, 2, 2]))) is None


@rows("odd", range(4))
def test_the_odd_one_out_is_at_fault_wherever_it_stands(odd):
    signatures = [reduced((4,))] * 4
    signatures[odd] = reduced((4,), reduction="MAX")
    assert ranks_that_differ(calls(*signatures), Code.MISMATCH_REDUCTION) == (odd,)


def test_two_against_two_are_all_at_fault():
    signatures = [reduced((4,)), reduced((5,)), reduced((4,)), reduced((5,))]
    assert ranks_that_differ(calls(*signatures), Code.MISMATCH_SHAPE) == (0, 1, 2, 3)


def test_who_has_a_part_in_every_misfit_of_splits_is_at_fault():
    even = exchanged([2, 2, 2], [2, 2, 2])
    assert ranks_that_differ(calls(even, exchanged([1, 2, 3], [2, 2, 2]), even), Code.MISMATCH_SPLITS) == (1,)


def test_the_few_that_split_unlike_most_are_at_fault():
    usual, empty = exchanged([1] * 5, [1] * 5), exchanged([0] * 5, [0] * 5)
    assert ranks_that_differ(calls(usual, empty, usual, usual, empty), Code.MISMATCH_SPLITS) == (1, 4)


def test_both_sides_of_a_single_misfit_are_at_fault():
    # Rank 0 sends 3 to rank 1, which expects 2; either may be wrong.
    sender, receiver = exchanged([1, 3], [1, 1]), exchanged([1, 1], [2, 1])
    assert ranks_that_differ(calls(sender, receiver), Code.MISMATCH_SPLITS) == (0, 1)


def message(operation, *shape, dtype="float32"):
    return Call(0, "g", 0, Signature(operation, (shape,), dtype), NOWHERE, peer=1)


@rows(
    ("receive", "code"),
    [
        (message("recv", 2, 3), None),
        (message("recv", 6), None),
        (message("recv", 5), Code.MISMATCH_SHAPE),
        (message("recv", 7), Code.MISMATCH_SHAPE),
        (message("recv", 2, 3, dtype="float64"), Code.MISMATCH_DTYPE),
        (message("recv", 2, 3, dtype="int32"), Code.MISMATCH_DTYPE),
    ],
)
def test_a_message_must_fit_its_receive(receive, code):
    assert message_differing_field(message("send", 2, 3), receive) is code


def bucket(index, step=1, wrapper=0, shadow=False):
    return Origin(Phase.BUCKET, wrapper, index, step, shadow)


@rows(
    ("origins", "code"),
    [
        ([bucket(0), bucket(0)], None),
        ([bucket(0, step=None), bucket(0, step=3)], None),
        ([bucket(0), bucket(0, shadow=True)], None),
        ([bucket(0), bucket(1)], Code.MISMATCH_ORIGIN),
        ([bucket(0), bucket(0, step=2)], Code.MISMATCH_ORIGIN),
        ([bucket(0), bucket(0, wrapper=1)], Code.MISMATCH_ORIGIN),
        ([bucket(0), USER_ORIGIN], Code.MISMATCH_ORIGIN),
        ([bucket(0), Origin(Phase.BUFFERS, 0, step=1)], Code.MISMATCH_ORIGIN),
    ],
)
def test_calls_that_agree_in_all_else_must_be_the_same_thing(origins, code):
    same = [reduced((4,)), reduced((4,))]
    assert first_differing_field(calls(*same, origins=origins)) is code
    assert first_differing_field(calls(*same, origins=origins[::-1])) is code


def test_what_differs_in_the_signature_is_told_before_the_origin():
    origins = [bucket(0), USER_ORIGIN]
    assert first_differing_field(calls(reduced((4,)), reduced((5,)), origins=origins)) is Code.MISMATCH_SHAPE


def test_lines_of_the_program_may_differ_and_are_seen_to():
    here, there = Site("a.py", 1, "f"), Site("a.py", 2, "f")
    same = [reduced((4,)), reduced((4,))]
    assert first_differing_field(calls(*same, sites=[here, there])) is None
    assert call_sites_differ(calls(*same, sites=[here, there]))
    assert not call_sites_differ(calls(*same, sites=[here, Site("a.py", 1, "f")]))


def test_a_stage_of_a_pipeline_has_a_line_of_its_own():
    """From torch 2.15 on, its ranks agree by an all_reduce on whether they know their shapes."""
    same, lines = [reduced((1,)), reduced((1,))], [Site("a.py", 1, "f"), Site("a.py", 2, "f")]
    agreeing = Origin(Phase.USER, part=CallPart(Parallelism.PIPELINE, "agreement on how shapes are known"))
    assert are_unusual_lines_matched(calls(*same, sites=lines))
    assert not are_unusual_lines_matched(calls(*same, sites=lines, origins=[agreeing] * 2))
