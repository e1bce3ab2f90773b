"""Threads of a rank that share a group: a mismatch names those whose calls met.

With a group for each thread it is clean: tests/exploration/test_threads.py covers that.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from ddpsim import simulate
from tests.kit.rank_threads import start


def lines_of(result):
    (finding,) = result.findings
    return finding.code.value, finding.ranks, finding.text.splitlines()


def test_a_mismatch_names_the_threads():
    """A metric is reduced in the background while the program goes on; on most ranks it comes to that late."""

    def program(rank):
        thread = start(lambda: dist.all_reduce(torch.ones(2)), name="flusher")
        if rank != 1:
            thread.join()
        dist.barrier()
        thread.join()

    code, ranks, lines = lines_of(simulate(program, 4))
    assert (code, ranks) == ("mismatch.operation", (1,))
    assert [line.partition("  #")[0].split(" #")[0] for line in lines[1:5]] == [
        '  rank 0, thread "flusher"  all_reduce',
        "  rank 1                    barrier",
        '  rank 2, thread "flusher"  all_reduce',
        '  rank 3, thread "flusher"  all_reduce',
    ]
    both = re.sub(r" \(test_shared_groups.py:\d+\)", "", lines[-2])
    assert both.startswith('  cause   on rank 1, the program and thread "flusher" were in collectives of')
    assert lines[-2].count("(test_shared_groups.py:") == 2


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


OR_ORDER = ", as where entries of a stack or a batch are missing, or this line's calls come in another order there"


@pytest.mark.parametrize(
    ("program", "code", "threads", "cause"),
    [
        (
            under_one_name,
            "mismatch.shape",
            ["worker"] * 3,
            f"rank 1 passed a different shape to the same call{OR_ORDER}",
        ),
        (
            under_a_name_of_the_rank,
            "mismatch.shape",
            ["comm-rank0", "comm-rank1", "comm-rank2"],
            f"rank 1 passed a different shape to the same call{OR_ORDER}",
        ),
        (
            under_a_number,
            "mismatch.shape",
            ["Thread-2 (<lambda>)", "Thread-1 (<lambda>)", "Thread-1 (<lambda>)"],
            f"rank 1 passed a different shape to the same call{OR_ORDER}",
        ),
        (
            in_a_pool,
            "mismatch.root",
            ["io-0_0", "io-1_0", "io-2_0"],
            "each rank passed a different root to the same call",
        ),
    ],
)
def test_what_threads_are_called_is_not_the_cause(program, code, threads, cause):
    found, _, lines = lines_of(simulate(program, 3))
    assert found == code
    rows = [f'  rank {rank}, thread "{name}"  ' for rank, name in enumerate(threads)]
    assert [line.startswith(row) for line, row in zip(lines[1:4], rows, strict=True)] == [True] * 3
    assert lines[-2] == f"  cause   {cause}"
