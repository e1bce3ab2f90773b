"""Where it happened, in the text of a finding: the line of the program with its source, right under the head."""

import linecache

import torch
import torch.distributed as dist

from ddpsim import simulate
from ddpsim.simulator.calls import NOWHERE, Call, Signature, Site
from ddpsim.simulator.result import source_lines_of_sites
from ddpsim.simulator.wording import LabelledLine


def returns_early(rank):
    if rank != 1:
        dist.barrier()  # here


def test_under_the_head_stands_the_line_with_its_source():
    lines = str(simulate(returns_early, 3)).splitlines()
    assert lines[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert lines[1].startswith("  where   test_source_lines.py:")
    assert lines[1].endswith("  dist.barrier()  # here")
    assert [line[:9] for line in lines[2:]] == [
        *["  rank 0 ", "  rank 1 ", "  rank 2 "],
        "  cause  ",
        "  try    ",
        "  replay ",
    ]


def raises(rank):
    raise ValueError("broken")


def test_source_that_the_traceback_shows_is_not_told_twice_and_none_of_a_run_that_passed():
    assert "where" not in str(simulate(lambda rank: dist.all_reduce(torch.ones(1)), 2))
    assert str(simulate(raises, 1)).count('raise ValueError("broken")') == 1


def test_a_line_of_an_installed_package_follows_the_programs_own_that_called_it(tmp_path):
    own, theirs = tmp_path / "train.py", tmp_path / "site-packages" / "metrics.py"
    theirs.parent.mkdir()
    own.write_text("metric.compute()\n")
    theirs.write_text("dist.barrier()\n")
    call = Call(
        0, "default", 0, Signature("barrier"), Site(str(theirs), 1, "sync", True), caller=Site(str(own), 1, "m")
    )
    assert source_lines_of_sites([call.site], "", [call]) == (
        LabelledLine("where", "train.py:1  metric.compute()"),
        LabelledLine("where", "metrics.py:1  dist.barrier()"),
    )
    linecache.clearcache()


def test_of_many_lines_the_first_three_are_told_each_once_and_a_long_one_is_cut(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("\n".join(["x" * 200, "two()", "  three()  ", "four()", ""]))
    sites = [Site(str(path), number, "main") for number in (1, 1, 3, 2, 4)]
    assert source_lines_of_sites([NOWHERE, *sites], "") == (
        LabelledLine("where", f"train.py:1  {'x' * 97}..."),
        LabelledLine("where", "train.py:3  three()"),
        LabelledLine("where", "train.py:2  two()"),
    )
    assert source_lines_of_sites(sites[3:], "two() was told") == (LabelledLine("where", "train.py:4  four()"),)
    linecache.clearcache()


def test_a_file_that_is_not_there_and_a_line_beyond_its_end_are_no_error(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("one()\n")
    assert (
        source_lines_of_sites(
            [Site(str(tmp_path / "gone.py"), 1, ""), Site(str(path), 7, ""), Site("<stdin>", 1, "")], ""
        )
        == ()
    )
