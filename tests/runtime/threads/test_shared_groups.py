"""Threads of a rank that share a group: what meets is a race, which the finding says; with a group each it is clean."""

import threading

import torch
import torch.distributed as dist

from simulator import Verdict, explore, simulate

RACE = "threads of a rank that share a group race"


def flush(rank, group, *, is_late):
    """A metric is reduced in the background while the program goes on; on some ranks it comes to that late."""
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2), group=group), name="flusher")
    thread.start()
    if is_late:
        thread.join()
    dist.barrier()
    thread.join()


def lines_of(result):
    (finding,) = result.findings
    return finding.code.value, finding.ranks, finding.text.splitlines()


def test_a_mismatch_names_the_threads_and_says_that_they_race():
    result = simulate(lambda rank: flush(rank, None, is_late=rank != 1), 4)
    code, ranks, lines = lines_of(result)
    assert (code, ranks) == ("mismatch.operation", (1,))
    assert [line.partition("  #")[0].split(" #")[0] for line in lines[1:5]] == [
        '  rank 0, thread "flusher"  all_reduce',
        "  rank 1                    barrier",
        '  rank 2, thread "flusher"  all_reduce',
        '  rank 3, thread "flusher"  all_reduce',
    ]
    cause, remedy = lines[-2:]
    assert cause == (
        '  cause   these calls were made by different threads, thread "flusher" on ranks 0, 2, 3 and the main thread '
        f"on rank 1: {RACE}, and whose call comes first may differ between ranks"
    )
    assert remedy == "  try     make all calls of a group in one thread, or create a group for each thread"


def test_with_a_group_for_each_thread_it_is_clean_whatever_the_schedule():
    def program(rank):
        flush(rank, dist.new_group(), is_late=rank != 1)

    assert simulate(program, 4).findings == ()
    explored = explore(program, 2)
    assert (explored.verdict, explored.complete) == (Verdict.PASS, True)


def test_the_race_is_found_by_exploring_where_the_program_is_the_same_on_all_ranks():
    explored = explore(lambda rank: flush(rank, None, is_late=False), 2)
    assert explored.first_failure is not None
    assert RACE in str(explored.first_failure)


def test_a_wrapper_in_the_main_thread_meets_a_call_of_another():
    def program(rank):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(7)), name="flusher")
        if rank:
            thread.start()
            thread.join()
        model(torch.ones(1, 2)).sum().backward()
        if not rank:
            thread.start()

    _, _, lines = lines_of(simulate(program, 2))
    assert lines[1].startswith("  rank 0                    all_reduce #")
    assert lines[2].startswith('  rank 1, thread "flusher"  all_reduce #')
    assert RACE in lines[-2]


def test_one_thread_of_each_rank_does_not_race():
    def program(rank):
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2 + rank)), name="worker")
        thread.start()
        thread.join()

    code, _, lines = lines_of(simulate(program, 3))
    assert code == "mismatch.shape"
    assert [line.split("  ")[1] for line in lines[1:4]] == [f'rank {rank}, thread "worker"' for rank in range(3)]
    assert RACE not in lines[-2]
