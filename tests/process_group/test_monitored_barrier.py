"""monitored_barrier: a time-out in virtual time that names who did not come."""

import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from ddpsim import simulate

LIMIT = timedelta(milliseconds=300)


def told(program, world_size=4):
    """What each rank's barrier said; None where it passed, or was not called."""

    def catching(rank):
        try:
            program(rank)
        except RuntimeError as error:
            return str(error).split("\n", 1)[0]
        return None

    result = simulate(catching, world_size)
    result.raise_for_verdict()
    return result.returns


def reached(rank):
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank "
        "0. Please check rank 0 logs for faulty rank."
    )


def test_everybody_passes_within_the_limit():
    def program(rank):
        time.sleep(0.05 * rank)
        dist.monitored_barrier(timeout=LIMIT)

    assert told(program) == (None,) * 4


def test_rank_0_names_the_first_missing_rank():
    def program(rank):
        if rank not in (1, 3):
            dist.monitored_barrier(timeout=LIMIT)

    assert told(program) == ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms", None, reached(2), None)


def test_or_all_of_them():
    def program(rank):
        if rank not in (1, 3):
            dist.monitored_barrier(timeout=LIMIT, wait_all_ranks=True)

    assert told(program)[0] == "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 300 ms"


def test_without_rank_0_the_others_know_no_more_than_that():
    assert told(lambda rank: rank and dist.monitored_barrier(timeout=LIMIT), 3) == (None, reached(1), reached(2))


def test_who_comes_after_it_was_given_up_fails_too():
    def program(rank):
        if rank == 1:
            time.sleep(1)
        dist.monitored_barrier(timeout=LIMIT)

    assert told(program, 2) == ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms", reached(1))


def test_ranks_are_those_of_the_group():
    def program(rank):
        group = dist.new_group([1, 3])
        if rank == 1:
            dist.monitored_barrier(group, timeout=LIMIT)

    assert told(program)[1] == "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms"


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
    assert [(finding.code.value, finding.ranks) for finding in result.findings] == [("mismatch.operation", (0,))]


def test_who_comes_at_the_instant_of_the_time_out_is_in_time():
    def program(rank):
        if rank:
            time.sleep(1.0)
        dist.monitored_barrier(timeout=timedelta(seconds=1))

    assert told(program, 2) == (None, None)


def test_or_not_if_rank_0_gives_up_first():
    class RankZeroFirst:
        def choose(self, point, options):
            return list(options).index(0) if 0 in options else 0

    def program(rank):
        if rank:
            time.sleep(1.0)
        with pytest.raises(RuntimeError, match="monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))

    simulate(program, 2, policy=RankZeroFirst()).raise_for_verdict()


@pytest.mark.parametrize("late", [0, 1])
def test_no_time_is_never_enough(late):
    def program(rank):
        time.sleep(rank == late)
        dist.monitored_barrier(timeout=timedelta(0))

    assert told(program, 3) == ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 0 ms", reached(1), reached(2))


def test_but_no_limit_for_a_rank_0_that_waits_for_all_ranks():
    def program(rank):
        time.sleep(rank == 1)
        dist.monitored_barrier(timeout=timedelta(0), wait_all_ranks=True)

    assert told(program, 3) == (None,) * 3
    assert told(lambda rank: dist.monitored_barrier(timeout=timedelta(0)), 1) == (None,)
