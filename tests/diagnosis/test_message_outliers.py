"""One rank of a correct program sends or receives otherwise: who is named, and at which line."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from ddpsim import Verdict, simulate
from tests.kit.mutants import PROGRAMS, Mutation, fan_in, fan_out, halo, mutations, pairs, pipeline, ring, run_of
from tests.kit.rows import rows


def told(program, size, mutation):
    """The first finding, and the line of the call that was changed."""
    seen = []
    result = simulate(run_of(program, size, mutation, seen), size)
    return result, seen[0] if seen else None


@rows(
    ("program", "size", "mutation", "words"),
    [
        (
            ring,
            8,
            Mutation("peer", 4, 2),
            "with rank 6 at mutants.py:{line}; all other calls of that line suggest rank 5",
        ),
        (ring, 8, Mutation("tag", 4, 3), "with tag 7 at mutants.py:{line}; all other calls of that line suggest tag 0"),
        (halo, 8, Mutation("tag", 4, 6), "with tag 8 after tag 1, a sequence seen nowhere else: otherwise tag"),
        (fan_in, 4, Mutation("peer", 3, 2), "rank 0 may be the right one"),
        (fan_out, 4, Mutation("extra", 2, 1), "rank 2 made 4 messages, the last of them recv #3 at mutants.py:{line}"),
        (
            pipeline,
            4,
            Mutation("extra", 0, 1),
            "reached mutants.py:{line} 4 times, and its send #3 there has no partner",
        ),
        (
            pipeline,
            4,
            Mutation("extra", 3, 1),
            "reached mutants.py:{line} 4 times, and its recv #3 there has no partner",
        ),
        (pairs, 8, Mutation("skip", 5, 2), "where mutants.py:{line} follows everywhere else"),
        (pipeline, 4, Mutation("extra", 2, 2), "the rank left a message out, made one twice, or changed the order"),
    ],
    ids=lambda value: f"{value.kind}" if isinstance(value, Mutation) else getattr(value, "__name__", None),
)
def test_the_rank_that_differs_leads_and_its_line_is_told(program, size, mutation, words):
    result, line = told(program, size, mutation)
    first = result.findings[0]
    assert first.ranks == (mutation.rank,)
    assert words.format(line=line) in first.text


def test_what_else_waits_comes_later_and_says_what_it_may_follow_from():
    def program(rank):
        for step in range(3):
            for target in (3, 4, 5):
                if rank == 2:
                    dist.isend(torch.ones(2), 3 if (step, target) == (2, 4) else target)
                elif rank == target:
                    dist.recv(torch.ones(2), 2)
        if rank == 0:
            dist.send(torch.ones(2), 1)

    first, second, *_ = simulate(program, 6).findings
    line = program.__code__.co_firstlineno + 4
    assert first.ranks == (2,)
    assert f"rank 2 made send #7 at test_message_outliers.py:{line} with rank 3 after rank 3" in first.text
    assert second.ranks == (1,)
    assert f"a consequence of the first finding: rank 2 made send #7 at test_message_outliers.py:{line}" in second.text


def test_a_message_that_was_received_is_not_odd_because_its_line_names_another_rank_mostly():
    def program(rank):
        if rank < 2:
            dist.recv(torch.ones(2))
            dist.recv(torch.ones(2))
        else:
            dist.send(torch.ones(2), 1 if rank == 2 else rank % 2)

    first, second = simulate(program, 6).findings
    assert (first.ranks, second.ranks) == ((2, 3, 4), (1,))  # and not rank 4, which alone names rank 0
    assert "rank 1 returned without the matching recv" in second.text


def test_ranks_that_are_alike_are_not_told_apart():
    result, _ = told(ring, 2, Mutation("tag", 0, 0))
    assert result.findings[0].ranks == (0, 1)
    assert "by the other" not in result.findings[0].text


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_with_a_message_too_many_or_too_few_either_may_be_wrong(rank):
    result, _ = told(pipeline, 2, Mutation("extra", rank, 0))
    assert "or the other side made one message too many" in result.findings[0].text


@pytest.mark.tier("nightly")
def test_of_all_mutants_most_are_told_and_few_blame_the_innocent():
    counts = Counter()
    for program in PROGRAMS:
        for size in (2, 4, 8):
            clean = simulate(run_of(program, size, None, []), size)
            assert clean.verdict is Verdict.PASS
            calls = Counter(event.rank for event in clean.trace if event.kind.name == "ISSUE")
            for mutation in mutations(size, [calls[rank] for rank in range(size)]):
                result, _ = told(program, size, mutation)
                if result.verdict is not Verdict.PASS:
                    ranks = result.findings[0].ranks
                    counts["all"] += 1
                    counts["exact"] += ranks == (mutation.rank,)
                    counts["innocent"] += mutation.rank not in ranks
    assert counts == {"all": 928, "exact": 693, "innocent": 19}  # 204 and 209 before messages were compared


@pytest.mark.parametrize("odd", [None, 1, 2])
def test_the_sends_and_receives_of_a_batch_have_rules_of_their_own(odd):
    """They are all made at one line."""

    def program(rank):
        size, room = dist.get_world_size(), torch.zeros(2)
        target = (rank + (2 if rank == odd else 1)) % size
        messages = [dist.P2POp(dist.isend, torch.ones(2), target), dist.P2POp(dist.irecv, room, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    result = simulate(program, 5)
    if odd is None:
        assert result.verdict is Verdict.PASS
        return
    assert result.findings[0].ranks == (odd,)
    assert f"rank {odd} made send #0 with rank {odd + 2} at test_message_outliers.py:" in result.findings[0].text
    assert f"all other calls of that line suggest rank {odd + 1}" in result.findings[0].text
