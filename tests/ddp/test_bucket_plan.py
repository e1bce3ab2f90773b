"""The plan of buckets is torch's, on any input."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.ddp.bucket_plan import BucketCaps, GradientSize, append_unseen_parameters, plan_buckets

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
KINDS = [(dtype, torch.device(device)) for dtype in DTYPES for device in ("cpu", "meta")]


@st.composite
def problems(draw):
    """Tensors with their kinds, whether each gets a sparse gradient, an order, and caps."""
    count = draw(st.integers(1, 12))
    tensors = [
        torch.empty(draw(st.integers(0, 40)), dtype=dtype, device=device)
        for dtype, device in draw(st.lists(st.sampled_from(KINDS), min_size=count, max_size=count))
    ]
    sparse = draw(st.lists(st.sampled_from([False, False, True]), min_size=count, max_size=count))
    order = draw(st.permutations(range(count)))
    return tensors, sparse, order, BucketCaps(draw(st.integers(1, 200)), draw(st.integers(1, 400)))


def footprints(tensors, sparse):
    return [
        GradientSize(tensor.numel() * tensor.element_size(), (tensor.dtype, tensor.device), is_sparse)
        for tensor, is_sparse in zip(tensors, sparse, strict=True)
    ]


@given(problems())
def test_same_as_torchs(problem):
    tensors, sparse, order, caps = problem
    plan = plan_buckets(order, footprints(tensors, sparse), caps)
    theirs, _ = dist._compute_bucket_assignment_by_size(
        [tensors[index] for index in order], [caps.first_bytes, caps.bytes], sparse, list(order)
    )
    # What is left over at the end, one bucket a kind, torch takes in the order of a hash table.
    left_over = len(theirs) - _closed(plan, tensors, sparse, caps)
    closed = len(theirs) - left_over
    assert [list(bucket) for bucket in plan[:closed]] == theirs[:closed]
    assert sorted(map(list, plan[closed:])) == sorted(theirs[closed:])


def _closed(plan, tensors, sparse, caps):
    """How many buckets reached their cap."""
    seen, closed = set(), 0
    for bucket in plan:
        kind = tensors[bucket[0]].dtype, tensors[bucket[0]].device
        size = sum(tensors[index].numel() * tensors[index].element_size() for index in bucket)
        if sparse[bucket[0]]:
            closed += 1
        elif size >= (caps.bytes if kind in seen else caps.first_bytes):
            closed += 1
            seen.add(kind)
    return closed


def test_what_was_not_seen_follows_the_last_defined_first():
    assert append_unseen_parameters([3, 1], 5) == (3, 1, 4, 2, 0)
    assert append_unseen_parameters([2, 0, 2, 0, 1], 3) == (2, 0, 1)
    assert append_unseen_parameters([], 3) == (2, 1, 0)
