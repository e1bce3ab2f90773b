"""monitored_barrier: a time-out in virtual time that names who did not come."""

import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from ddpsim import simulate
from tests.kit.results import codes, returned

LIMIT = timedelta(milliseconds=300)


def told(program, world_size=4):
    """What each rank's barrier said; None where it passed, or was not called."""

    def catching(rank):
        try:
            program(rank)
        except RuntimeError as error:
            return str(error).split("\n", 1)[0]
        return None

    return returned(catching, world_size)


def reached(rank):
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank "
        "0. Please check rank 0 logs for faulty rank."
    )


def failed(ranks, milliseconds=300):
    return f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {milliseconds} ms"


ALL_RANKS = {"wait_all_ranks": True}
NO_TIME = timedelta(0)

# How late ranks come, in seconds, or None; with which options; and what they are told.
TOLD = {
    "everybody passes within the limit": ([0, 0.05, 0.1, 0.15], {}, [None] * 4),
    "rank 0 names the first missing rank": ([0, None, 0, None], {}, [failed("Rank 1"), None, reached(2), None]),
    "or all of them": ([0, None, 0, None], ALL_RANKS, [failed("Ranks 1, 3"), None, reached(2), None]),
    "without rank 0 the others know no more than that": ([None, 0, 0], {}, [None, reached(1), reached(2)]),
    "who comes after it was given up fails too": ([0, 1], {}, [failed("Rank 1"), reached(1)]),
    "who comes at the instant of the time-out is in time": ([0, 1.0], {"timeout": timedelta(seconds=1)}, [None, None]),
    **{
        f"no time is never enough, {late}": (
            late,
            {"timeout": NO_TIME},
            [failed("Rank 1", 0), reached(1), reached(2)],
        )
        for late in ([1, 0, 0], [0, 1, 0])
    },
    "but no limit for a rank 0 that waits for all ranks": ([0, 1, 0], {"timeout": NO_TIME} | ALL_RANKS, [None] * 3),
    "nor for one that is alone": ([0], {"timeout": NO_TIME}, [None]),
}


@pytest.mark.parametrize(("late", "options", "expected"), TOLD.values(), ids=TOLD)
def test_what_ranks_are_told(late, options, expected):
    def program(rank):
        if late[rank]:
            time.sleep(late[rank])
        if late[rank] is not None:
            dist.monitored_barrier(**({"timeout": LIMIT} | options))

    assert told(program, len(late)) == tuple(expected)


def test_the_next_barrier_starts_afresh():
    def program(rank):
        time.sleep(rank)
        with pytest.raises(RuntimeError, match="monitoredBarrier"):
            dist.monitored_barrier(timeout=LIMIT)
        time.sleep(1 - rank)
        dist.monitored_barrier(timeout=timedelta(seconds=2))

    assert told(program, 2) == (None, None)


def test_the_default_of_torch_is_half_an_hour_of_virtual_time():
    def program(rank):
        if rank == 0:
            dist.monitored_barrier()

    result = simulate(program, 2)
    assert result.virtual_seconds == pytest.approx(1800)
    assert "Rank 1 failed to pass monitoredBarrier in 1800000 ms" in str(result.errors[0])


def test_rank_0_leads_the_report():
    result = simulate(lambda rank: dist.monitored_barrier() if rank != 1 else None, 4)
    assert list(result.errors) == [0, 2, 3]


def test_meeting_another_call_is_a_mismatch():
    result = simulate(lambda rank: dist.monitored_barrier() if rank else dist.barrier(), 3)
    assert codes(result) == [("mismatch.operation", (0,))]


def test_who_comes_at_that_instant_is_late_if_rank_0_gives_up_first():
    class RankZeroFirst:
        def choose(self, point, options):
            return list(options).index(0) if 0 in options else 0

    def program(rank):
        if rank:
            time.sleep(1.0)
        with pytest.raises(RuntimeError, match="monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))

    simulate(program, 2, policy=RankZeroFirst()).raise_for_verdict()


MISSING = {
    "one": ({2}, {}),
    "two, of which the text names one": ({1, 3}, {}),
    "two, of which the text names both": ({1, 3}, ALL_RANKS),
    "rank 0, which nobody's text calls late": ({0}, {}),
    "rank 0 and another": ({0, 2}, ALL_RANKS),
}


@pytest.mark.parametrize(("missing", "options"), MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("is_late", [False, True])
def test_those_are_to_blame_that_did_not_come(missing, options, is_late):
    def program(rank):
        if rank in missing and is_late:
            time.sleep(9)
        if rank not in missing or is_late:
            dist.monitored_barrier(timeout=LIMIT, **options)

    result = simulate(program, 4)
    assert codes(result) == [("rank_error", tuple(sorted(missing)))]
    who = "rank 2" if missing == {2} else None
    if who is not None:
        assert f"{who} had not reached monitored_barrier #0 after 300 ms" in result.findings[0].text
        assert (
            "  when the time was over:\n  rank 2  waits for the clock\n"
            if is_late
            else "  rank 2  returned before its first call\n"
        ) in str(result)


def test_ranks_to_blame_are_those_of_the_world_where_gloo_names_those_of_the_group():
    def program(rank):
        group = dist.new_group([1, 2, 3])
        if rank in (1, 2):
            dist.monitored_barrier(group, timeout=LIMIT)

    result = simulate(program, 4)
    assert codes(result) == [("rank_error", (3,))]
    assert result.findings[0].summary.startswith("rank 1 raised RuntimeError: [Rank 0]: Rank 2 failed to pass")
    assert "  rank 2 raised RuntimeError: Rank 1 successfully reached" in result.findings[0].text
    assert 'cause   rank 3 had not reached monitored_barrier #1 on "1" after 300 ms' in result.findings[0].text


def test_what_a_rank_raised_instead_comes_first():
    def program(rank):
        if rank == 2:
            raise ValueError("no such file")
        dist.monitored_barrier(timeout=LIMIT)

    first, *rest = simulate(program, 4).findings
    assert "rank 2 raised ValueError" in first.summary
    assert [finding.ranks for finding in rest] == [(2,)]
    assert "  rank 2  raised ValueError: no such file  test_monitored_barrier.py:" in rest[0].text


def test_a_rank_that_raises_for_a_failed_barrier_is_still_told_by_what_it_raised():
    def program(rank):
        if rank != 1:
            try:
                dist.monitored_barrier(timeout=LIMIT)
            except RuntimeError as error:
                raise OSError("cannot start") from error

    assert codes(simulate(program, 3)) == [("rank_error", (0, 2))]


def test_no_time_at_all_is_the_fault_of_who_gives_none():
    (first, *rest) = simulate(lambda rank: dist.monitored_barrier(timeout=NO_TIME), 3).findings
    assert first.ranks == (0,)
    assert "with a timeout of 0" in first.text
    assert not rest or all("with a timeout of 0" in finding.text for finding in rest)


@pytest.mark.tier("ci")
def test_ranks_as_processes_are_blamed_alike():
    def program(rank):
        if rank % 2 == 0:
            dist.monitored_barrier(timeout=LIMIT)

    result = simulate(program, 4, isolation="process")
    assert codes(result) == [("rank_error", (1, 3))]
    assert "  rank 3  returned before its first call\n" in str(result)
