"""Who gets to the end of a collective with a root, worked out and as real gloo has it."""

from random import Random

import pytest

from ddpsim.scenarios.jobs.rank_report import RankEnding
from ddpsim.simulator.programs.program import Issue
from tests.agreement.gloo import on_gloo
from tests.agreement.parts import who_ends
from tests.kit.rows import rows
from tests.programs.programs import program, waited


def issue(operation, root, count=4):
    reduction = "SUM" if operation == "reduce" else None
    return Issue("a", operation, shapes=((count,),), dtype="float32", reduction=reduction, root=root)


@rows(
    ("operation", "callers", "ends"),
    [
        ("broadcast", {0, 1, 3}, {1, 3}),  # 0 sends to 1 and 2, 1 sends to 3
        ("broadcast", {0, 1, 2}, {0, 2}),
        ("broadcast", {1, 2, 3}, set()),
        ("gather", {0, 1, 2}, {1, 2}),
        ("gather", {1, 2, 3}, set()),
        ("scatter", {0, 3}, {3}),
        ("reduce", {0, 1, 2, 3}, {0, 1, 2, 3}),
        ("reduce", {0, 1, 2}, set()),
    ],
)
def test_with_ranks_missing(operation, callers, ends):
    calls = {rank: issue(operation, 0, count=8) for rank in callers}
    assert who_ends(calls, range(4)) == ends


def test_one_element_goes_down_the_ring():
    """From 3 by 2 and 1 to 0, and from there to the root."""
    assert who_ends({rank: issue("reduce", 2, count=1) for rank in (1, 2, 3)}, range(4)) == {3}
    assert who_ends({rank: issue("reduce", 2, count=1) for rank in (0, 1, 3)}, range(4)) == set()


def test_ranks_are_those_of_the_group():
    calls = {rank: issue("gather", 5) for rank in (5, 9)}
    assert who_ends(calls, (2, 5, 9)) == {9}


def drawn(random):
    """The roots that ranks believe in, by rank; None for those that do not call. Few roots, so that parts often fit."""
    size = random.randint(2, 5)
    right, wrong = random.sample(range(size), 2)
    roots = [wrong if random.random() < 0.25 else right for _ in range(size)]
    if random.random() < 0.5:
        roots[random.randrange(size)] = None
    operation = random.choice(["broadcast", "gather", "scatter", "reduce", "reduce"])
    count = random.choice([0, 1, 2, 5, 12]) if operation == "reduce" else 4
    return {rank: issue(operation, root, count) for rank, root in enumerate(roots) if root is not None}, size


DRAWN = [drawn(Random(seed)) for seed in range(90)]


@pytest.mark.parametrize(
    "drawn",
    [pytest.param(DRAWN[:9], marks=pytest.mark.tier("ci")), pytest.param(DRAWN, marks=pytest.mark.tier("nightly"))],
    ids=len,
)
def test_as_on_gloo(drawn, server):
    programs = [program(*[waited(calls[rank]) if rank in calls else () for rank in range(n)]) for calls, n in drawn]
    counts = set()
    for (calls, size), reports in zip(drawn, on_gloo((each, 0.5) for each in programs), strict=True):
        ended = {rank for rank in calls if reports[rank].ending is RankEnding.RETURNED}
        assert ended == who_ends(calls, range(size)), calls
        counts.add((len(ended) == 0, len(ended) == len(calls)))
    assert len(counts) == 3  # none, some and all get to the end
