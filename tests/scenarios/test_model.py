"""Scenarios made of functions: names, lines that are marked, and functions that would not run."""

import re
import textwrap

import pytest

from ddpsim import UsageError
from ddpsim.scenarios import load, run_scenario, scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import marked_lines_of_file

HEAD = """
from ddpsim.scenarios import finds, scenario
from ddpsim import Code
import torch
import torch.distributed as dist
"""


@pytest.fixture
def write(write):
    """Write scenarios, behind what they import."""
    return lambda text: write(HEAD + textwrap.dedent(text), "own.py")


def two_bugs(marker=""):
    return f"""
        @scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=1))
        def one(rank):
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM){marker}

        @scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=1))
        def two(rank):
            dist.barrier()
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)  # found here
    """


def test_marks_in_the_function_itself_are_its_own(write):
    path = write(two_bugs("  # found here"))
    assert [load(f"{path}:{name}").expected.lines for name in ("one", "two")] == [(9,), (14,)]
    for name in ("one", "two"):
        bug = load(f"{path}:{name}")
        assert bug.expected.is_met_by(run_scenario(bug))


def test_marks_of_helpers_count_beside_those_of_the_function(write):
    path = write(
        """
        def reduce(rank):
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)  # found here

        @scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=1))
        def one(rank):
            reduce(rank)  # found here by ddp

        @scenario()
        def other(rank):
            pass  # found here
        """
    )
    bug = load(f"{path}:one")
    assert bug.expected.lines == (8,)
    assert bug.expected_by(Engine.DDP).lines == (8, 12)
    assert bug.expected.is_met_by(run_scenario(bug))


def test_marks_of_helpers_count_where_the_function_uses_them_directly_or_not(write):
    path = write(
        """
        def first():
            dist.barrier()  # found here

        def second():
            dist.barrier()  # found here

        CALLS = [second]

        def call_all():
            for call in CALLS:
                call()

        @scenario(expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1))
        def one(rank):
            first()

        @scenario(expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1))
        def two(rank):
            call_all()

        def in_no_scenario():
            dist.barrier()  # found here
        """
    )
    assert [load(f"{path}:{name}").expected.lines for name in ("one", "two")] == [(8, 28), (11, 28)]


def test_the_same_line_of_another_file_is_another_line(write, tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "import torch.distributed as dist\n" * 8
        + "def reduce(tensor, op): dist.all_reduce(tensor, op=op)\n"  # line 9, as the mark
    )
    path = write(
        """
        from elsewhere import reduce
        @scenario(expected=finds(Code.MISMATCH_REDUCTION, ranks=1))
        def one(rank):  # found here
            reduce(torch.ones(1), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
        """
    )
    bug = load(f"{path}:one")
    result = run_scenario(bug)
    assert bug.expected.lines == (result.findings[0].sites[0].line,) == (9,)
    assert not bug.expected.is_met_by(result)


def test_a_mark_of_an_unknown_engine(write):
    path = write("x = 1  # found here by troch\n")
    expected = f"{path}:6 engine is 'troch', expected 'torch' or 'ddp': give one of these"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        marked_lines_of_file(path, Engine.TORCH)


def test_scenarios_and_their_twins_may_be_functions_that_take_no_rank(write):
    path = write("""
        from ddpsim.scenarios import repairs

        @scenario(expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1))
        def leaves():
            for _ in range(2 - dist.get_rank()):
                dist.barrier()  # found here

        @repairs(leaves)
        def stays():
            dist.barrier()
    """)
    for name in ("leaves", "stays"):
        own = load(f"{path}:{name}")
        result = run_scenario(own, world_size=2)
        assert own.expected.is_met_by(result), result
        assert own.program.__name__ == name


def test_functions_that_would_not_run():
    async def waits(rank):
        raise AssertionError

    def yields(rank):
        yield

    for function, kind in ((waits, "an async function"), (yields, "a generator")):
        with pytest.raises(
            UsageError, match=rf"^scenario is .*, but {function.__name__} is {kind}, which a call does not run"
        ):
            scenario()(function)
