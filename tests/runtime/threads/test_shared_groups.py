"""Threads of a rank that share a group: a mismatch names those whose calls met; with a group each it is clean."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from ddpsim import Verdict, explore, simulate
from tests.kit.rank_threads import start


def flush(rank, group, *, is_late):
    """A metric is reduced in the background while the program goes on; on some ranks it comes to that late."""
    thread = start(lambda: dist.all_reduce(torch.ones(2), group=group), name="flusher")
    if is_late:
        thread.join()
    dist.barrier()
    thread.join()


def lines_of(result):
    (finding,) = result.findings
    return finding.code.value, finding.ranks, finding.text.splitlines()


def test_a_mismatch_names_the_threads():
    result = simulate(lambda rank: flush(rank, None, is_late=rank != 1), 4)
    code, ranks, lines = lines_of(result)
    assert (code, ranks) == ("mismatch.operation", (1,))
    assert [line.partition("  #")[0].split(" #")[0] for line in lines[1:5]] == [
        '  rank 0, thread "flusher"  all_reduce',
        "  rank 1                    barrier",
        '  rank 2, thread "flusher"  all_reduce',
        '  rank 3, thread "flusher"  all_reduce',
    ]
    assert lines[-2].startswith("  cause   rank 1 took another branch")


def test_with_a_group_for_each_thread_it_is_clean_whatever_the_schedule():
    def program(rank):
        flush(rank, dist.new_group(), is_late=rank != 1)

    assert simulate(program, 4).findings == ()
    explored = explore(program, 2)
    assert (explored.verdict, explored.complete) == (Verdict.PASS, True)


def test_the_race_is_found_by_exploring_where_the_program_is_the_same_on_all_ranks():
    explored = explore(lambda rank: flush(rank, None, is_late=False), 2)
    assert explored.first_failure is not None
    code, _, lines = lines_of(explored.first_failure)
    assert code == "mismatch.operation"
    assert sum(', thread "flusher"  all_reduce' in line for line in lines) == 1


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


def under_one_name(rank):
    start(lambda: dist.all_reduce(torch.ones(2 + (rank == 1))), name="worker").join()


def under_a_name_of_the_rank(rank):
    start(lambda: dist.all_reduce(torch.ones(2 + (rank == 1))), name=f"comm-rank{rank}").join()


def under_a_number(rank):
    if rank == 0:
        start(lambda: None).join()
    start(lambda: dist.all_reduce(torch.ones(2 + (rank == 1)))).join()


def in_a_pool(rank):
    with ThreadPoolExecutor(1, thread_name_prefix=f"io-{rank}") as pool:
        pool.submit(lambda: dist.broadcast(torch.ones(2), src=rank)).result()


@pytest.mark.parametrize(
    ("program", "code", "threads", "cause"),
    [
        (under_one_name, "mismatch.shape", ["worker"] * 3, "rank 1 passed another shape to the same call"),
        (
            under_a_name_of_the_rank,
            "mismatch.shape",
            ["comm-rank0", "comm-rank1", "comm-rank2"],
            "rank 1 passed another shape to the same call",
        ),
        (
            under_a_number,
            "mismatch.shape",
            ["Thread-2 (<lambda>)", "Thread-1 (<lambda>)", "Thread-1 (<lambda>)"],
            "rank 1 passed another shape to the same call",
        ),
        (in_a_pool, "mismatch.root", ["io-0_0", "io-1_0", "io-2_0"], "each rank passed another root to the same call"),
    ],
)
def test_what_threads_are_called_is_not_the_cause(program, code, threads, cause):
    found, _, lines = lines_of(simulate(program, 3))
    assert found == code
    rows = [f'  rank {rank}, thread "{name}"  ' for rank, name in enumerate(threads)]
    assert [line.startswith(row) for line, row in zip(lines[1:4], rows, strict=True)] == [True] * 3
    assert lines[-2] == f"  cause   {cause}"
