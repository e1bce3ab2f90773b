"""Which earlier call is to blame where calls are one off, and where they only look so."""

from pathlib import Path

import pytest
import torch.distributed as dist

from ddpsim import simulate
from tests.kit.rows import rows

FILE = Path(__file__).name


def first(call):
    call()


def second(call):
    call()


def found(program, world_size=4):
    [finding, *hazards] = simulate(program, world_size).findings
    assert finding.code == "deadlock.missing_rank"
    assert {hazard.code for hazard in hazards} <= {"hazard.call_site"}
    return finding


def names(finding):
    return [site.function for site in finding.sites]


@rows(
    ("ranks", "world_size", "culprits"),
    [
        ((0,), 4, (0,)),
        ((2,), 3, (2,)),
        ((0,), 2, (0, 1)),
        ((1,), 2, (0, 1)),
        ((0, 1, 2), 4, (3,)),
        ((1, 2), 4, (0, 1, 2, 3)),
    ],
)
def test_a_call_of_some_ranks_that_meets_another_line(ranks, world_size, culprits):
    def program(rank):
        if rank in ranks:
            first(dist.barrier)
        for _ in range(3):
            second(dist.barrier)

    finding = found(program, world_size)
    assert finding.ranks == culprits
    assert names(finding)[0] == ("second" if culprits == (3,) else "first")
    cause, remedy = finding.text.splitlines()[-2:]
    assert "calls from different lines were matched in barrier #0, " in cause
    assert remedy == f"  try     make the call at {FILE}:{first.__code__.co_firstlineno + 1} on every rank, or on none"


def synchronising(path):
    """A metric of another file, whose value takes two calls."""
    text = "import torch.distributed as dist\ndef compute():\n    for _ in range(2):\n        dist.barrier()\n"
    names = {}
    exec(compile(text, str(path), "exec"), names)
    return names["compute"]


def test_a_function_that_is_called_in_a_branch_too_is_told_where_it_is_called(tmp_path):
    compute = synchronising(tmp_path / "metric.py")

    def program(rank):
        if rank == 0:
            first(compute)
        second(compute)

    finding = found(program)
    assert (finding.ranks, names(finding)) == ((0,), ["first", "second", "compute"])
    assert finding.text.splitlines()[-1].startswith(
        f"  try     make the call at {FILE}:{first.__code__.co_firstlineno + 1} on every rank"
    )


@pytest.mark.parametrize("is_of_a_file", [True, False], ids=["a function whose loop it is", "a branch of its own"])
def test_a_branch_of_each_ranks_own_is_not_to_blame_for_a_rank_that_leaves_early(is_of_a_file, tmp_path):
    call = synchronising(tmp_path / "metric.py") if is_of_a_file else dist.barrier

    def program(rank):
        (first if rank == 0 else second)(call)
        for _ in range(2 if rank == 1 else 3):
            call()

    finding = found(program)
    assert finding.ranks == (1,)
    assert f"rank 1 returned without making barrier #{6 if is_of_a_file else 3}" in finding.text


def test_nor_is_one_on_another_group():
    def program(rank):
        group = dist.new_group([0, 1, 2, 3])
        (first if rank == 0 else second)(lambda: dist.barrier(group))
        if rank == 0:
            dist.barrier()

    finding = found(program)
    assert finding.ranks == (0,)
    assert "rank 0 made barrier #" in finding.text


@pytest.mark.parametrize("how_often", [1, 2])
def test_a_rank_that_destroys_the_group(how_often):
    def program(rank):
        for _ in range(how_often if rank == 1 else 3):
            dist.barrier()
        second(dist.destroy_process_group)

    finding = found(program)
    assert (finding.ranks, names(finding)[0]) == ((1,), "second")
    assert f"rank 1 destroyed the group at {FILE}:{second.__code__.co_firstlineno + 1}" in finding.text
    assert f"without making barrier #{how_often}" in finding.text


def test_a_rank_that_destroys_another_group_only_returned():
    def program(rank):
        group = dist.new_group([0, 1, 2, 3])
        dist.barrier(group)
        if rank == 1:
            dist.destroy_process_group(group)
        else:
            dist.barrier()

    finding = found(program)
    assert "rank 1 returned without making barrier #" in finding.text
