"""Groups that outlive what made them: a module keeps one from rank to rank, or from run to run."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from ddpsim import Code, UsageError, simulate


def in_a_module(kept):
    """A habit: `initialize()` makes the groups, and the whole process finds them in a module."""

    def program(rank):
        kept["group"] = dist.new_group()
        dist.barrier()
        dist.all_reduce(total := torch.ones(1) + rank, group=kept["group"])
        return total.item()

    return program


def test_a_group_of_another_rank_is_refused():
    with pytest.raises(UsageError, match="rank 1 calls all_reduce on the process group of rank 0, expected its own"):
        simulate(in_a_module({}), 2)


def test_in_a_process_of_ones_own_it_is_ones_own():
    assert simulate(in_a_module({}), 2, isolation="process").returns == (3.0, 3.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.allreduce(torch.ones(1)).wait(),
        lambda group: dist.all_reduce(torch.ones(1), group=group),
    ],
    ids=["method", "function"],
)
def test_a_group_of_an_earlier_run_is_an_error(call):
    groups = {}

    def program(rank):
        call(groups.setdefault(rank, dist.group.WORLD))
        return "done"

    assert simulate(program, 2).returns == ("done", "done")
    later = simulate(program, 2)
    assert {each.code for each in later.findings} == {Code.RANK_ERROR}
    assert sorted(rank for each in later.findings for rank in each.ranks) == [0, 1]
    with pytest.raises(UsageError, match="belongs to a run that has ended"):
        groups[0].allreduce(torch.ones(1))


LATE = """
import torch
from ddpsim import simulate

def program(rank):
    import torch.distributed.nn.functional as nn  # its default arguments are the default group of that moment
    return nn.all_reduce(torch.full((1,), 1.0 + rank)).item()

for _ in range(2):
    print(simulate(program, 2).returns)
"""


@pytest.mark.tier("ci")
def test_a_module_of_torchs_that_is_loaded_late_takes_no_group(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    ended = subprocess.run([sys.executable, "-W", "ignore", "late.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("(3.0, 3.0)\n(3.0, 3.0)\n", "")
