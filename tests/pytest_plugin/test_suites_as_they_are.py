"""`--ddpsim`, by day: ranks that a test starts by `mp.spawn`, threads and processes; tests/suites has the rest."""

import multiprocessing.popen_spawn_posix
import multiprocessing.queues  # noqa: F401

import pytest
import torch.multiprocessing  # noqa: F401

from tests.pytest_plugin.reading import report_of

SPAWNED = """
import torch.multiprocessing as mp

def main(rank, size, file, leaves):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    if rank == 0 or not leaves:
        dist.barrier()

def test_leaves(tmp_path):
    mp.spawn(main, args=(2, tmp_path / "store", True), nprocs=2)

def test_passes_after_it(tmp_path):
    mp.spawn(main, args=(2, tmp_path / "store", False), nprocs=2)
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_rank_that_leaves_fails_its_test_alone(run, isolation):
    result = run(SPAWNED, "--ddpsim", "--ddpsim-isolation", isolation)
    result.assert_outcomes(passed=1, failed=1)
    assert report_of(result, "test_leaves")[0].startswith("DEADLOCK  deadlock.missing_rank")
