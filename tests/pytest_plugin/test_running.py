"""A marked test runs on every rank; what it gets there, and what pytest's own means do there."""

import sys
import threading
from math import inf

import pytest

from ddpsim import Budget, simulate
from ddpsim.scenarios.pytest_plugin import running
from tests.pytest_plugin.reading import report_of

PASSING = {
    ("every rank runs it with its own number", 1): """
@pytest.mark.ranks(4)
def test_sum(rank, world_size):
    each = torch.tensor([rank + 1.0])
    dist.all_reduce(each)
    assert (world_size, each.item()) == (4, 10.0)
""",
    ("without the marker a test runs once outside", 1): """
def test_plain():
    assert not dist.is_initialized()
""",
    ("fixtures parametrize and tmp path are made once and shared", 3): """
made = []

@pytest.fixture
def box(tmp_path):
    made.append(tmp_path)
    yield [tmp_path]
    made.append("gone")

@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.ranks(3)
def test_shared(box, rank, n, tmp_path):
    assert box[0] == tmp_path
    box.append(rank)
    dist.barrier()
    assert sorted(box[1:]) == [0, 1, 2] and len(made) == 2 * n - 1

def test_afterwards():
    assert made[1::2] == ["gone", "gone"] and made[0] != made[2]
""",
    ("methods run with their own instance", 2): """
class TestIt:
    def setup_method(self):
        self.seen = []

    @pytest.mark.ranks(2)
    def test_a(self, rank):
        self.seen.append(rank)
        dist.barrier()
        assert sorted(self.seen) == [0, 1]

    @pytest.mark.ranks(3)
    def test_b(self, rank):
        self.seen.append(rank)
        dist.barrier()
        assert sorted(self.seen) == [0, 1, 2]
""",
    ("a marker of a parameter sets the world size", 3): """
@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.ranks(n)) for n in (1, 2, 5)])
def test_sizes(n, world_size, rank):
    assert n == world_size == dist.get_world_size() and rank < n
""",
    ("a marker of one parameter wins over that of the function which says the rest", 8): """
@pytest.mark.ranks(2, expect="deadlock.missing_rank")
@pytest.mark.parametrize("n", [2, pytest.param(8, marks=pytest.mark.ranks(8))])
def test_hangs(rank, n, world_size):
    assert world_size == n == dist.get_world_size()
    if rank:
        dist.barrier()

@pytest.mark.ranks(2, seeds=range(3))
@pytest.mark.parametrize("n", [2, pytest.param(5, marks=pytest.mark.ranks(5, policy="pct"))])
def test_drawn(rank, n, world_size, ddpsim_seed):
    assert world_size == n and ddpsim_seed in range(3)
""",
    ("monkeypatch warns and caplog work on ranks", 2): """
import logging, os, warnings

@pytest.mark.ranks(2)
def test_all(rank, monkeypatch, caplog):
    assert os.environ["HOME"]
    monkeypatch.setenv("OWN", str(rank))
    with pytest.warns(UserWarning, match=f"rank {rank}"):
        warnings.warn(f"rank {rank}")
    logging.getLogger("own").warning("from %d", rank)
    dist.barrier()
    assert os.environ["OWN"] == str(rank)  # each has its own
    assert sorted(caplog.messages) == ["from 0", "from 1"]

def test_gone():
    assert "OWN" not in os.environ
""",
    ("a fixture set up outside may replace what ranks call", 1): """
import math

@pytest.fixture
def seven(monkeypatch):
    monkeypatch.setattr(math, "floor", lambda number: 7)

@pytest.mark.ranks(2)
def test_patched(rank, seven):
    assert math.floor(rank) == 7
""",
    ("a patched argument comes before the ranks", 1): """
from unittest import mock

@mock.patch("os.getcwd", return_value="here")
@pytest.mark.ranks(2)
def test_patched(patched, rank):
    import os
    assert os.getcwd() == patched() == "here" and rank < 2
""",
}
"""What tests on ranks may rely on, and how many of them pass to show it."""


@pytest.mark.parametrize(("name", "passed"), PASSING)
def test_it_passes(run, name, passed):
    run(PASSING[name, passed]).assert_outcomes(passed=passed)


def test_a_skip_on_all_ranks_skips_the_test(run):
    result = run(
        """
@pytest.mark.ranks(2)
def test_skips(rank):
    pytest.skip("not today")
""",
        "-rs",
    )

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: not today"])


def test_a_skip_on_some_ranks_skips_the_test_and_says_so(run):
    result = run(
        """
@pytest.mark.ranks(4)
def test_skips(rank):
    if rank in (1, 2):
        pytest.skip("not here")
    dist.barrier()
""",
        "-rs",
    )

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: not here (ranks 1, 2 of 4)"])


def test_a_failure_of_another_rank_wins_over_a_skip(run):
    result = run("""
@pytest.mark.ranks(2)
def test_both(rank):
    if rank == 0:
        pytest.skip("no")
    assert not rank
""")

    result.assert_outcomes(failed=1)


def test_xfail_fail_and_raises_mean_the_same_on_a_rank(run):
    result = run("""
@pytest.mark.ranks(2)
def test_xfail(rank):
    pytest.xfail("known")

@pytest.mark.ranks(2)
def test_fail(rank):
    pytest.fail("on purpose")

@pytest.mark.ranks(2)
def test_raises(rank):
    with pytest.raises(ZeroDivisionError):
        rank / 0
    dist.barrier()
""")

    result.assert_outcomes(xfailed=1, failed=1, passed=1)
    result.stdout.fnmatch_lines(["E       Failed: on purpose"])


def test_a_strict_xfail_is_met_by_a_deadlock_and_broken_by_a_pass(run):
    result = run("""
@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_hangs(rank):
    if rank:
        dist.barrier()

@pytest.mark.xfail(strict=True)
@pytest.mark.ranks(2)
def test_runs(rank):
    dist.barrier()

@pytest.mark.xfail(raises=AssertionError)
@pytest.mark.ranks(2)
def test_asserts(rank):
    assert not rank

@pytest.mark.xfail(raises=AssertionError)
@pytest.mark.ranks(2)
def test_other(rank):
    if rank:
        dist.barrier()
""")

    result.assert_outcomes(xfailed=2, failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


def test_exit_on_a_rank_ends_the_session(run):
    result = run("""
@pytest.mark.ranks(2)
def test_exits(rank):
    pytest.exit("enough")

def test_never():
    pass
""")

    result.assert_outcomes()
    result.stdout.fnmatch_lines(["*Exit: enough*"])


def test_x_stops_after_the_first_failure(run):
    source = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(4))
def test_hangs(rank, n):
    if rank == n:
        dist.barrier()
"""
    run(source, "-x").assert_outcomes(failed=1)
    run(source, "--maxfail=2").assert_outcomes(failed=2)
    run(source).assert_outcomes(failed=2, passed=2)


def test_last_failed_runs_the_failing_one_again(run):
    source = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(4))
def test_hangs(rank, n):
    if rank == n == 1:
        dist.barrier()
"""
    run(source, "-p", "cacheprovider").assert_outcomes(failed=1, passed=3)
    result = run("", "-p", "cacheprovider", "--lf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["run-last-failure: rerun previous 1 failure"])


def test_pdb_looks_at_the_rank_that_failed_afterwards(run, monkeypatch):
    typed = iter(["p ('here', rank, own)", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))

    result = run(
        """
@pytest.mark.ranks(3)
def test_fails(rank):
    own = rank * 10
    dist.barrier()
    assert own < 20
""",
        "--pdb",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*('here', 2, 20)"])


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_a_debugger_stops_in_each_rank_and_has_time(run, monkeypatch, option):
    stops, given = [], []
    monkeypatch.setattr("builtins.input", lambda prompt="": stops.append(prompt) or "c")
    monkeypatch.setattr(
        running, "simulate", lambda *rest, budget, **named: given.append(budget) or simulate(*rest, **named)
    )

    result = run(
        f"""
@pytest.mark.ranks(2, budget={{"stuck_seconds": 0.05, "steps": 1000}})
def test_stops(rank):
    {"breakpoint()" if option == "--pdb" else "pass"}
    dist.barrier()
""",
        option,
    )

    result.assert_outcomes(passed=1)
    assert given == [Budget(seconds=inf, stuck_seconds=inf, steps=1000)]
    assert stops == ["(Pdb) "] * 2


@pytest.mark.parametrize("style", ["short", "line", "native", "no", "long"])
def test_styles_of_tracebacks(run, style):
    result = run(
        """
@pytest.mark.ranks(2)
def test_fails(rank):
    assert rank == 0

@pytest.mark.ranks(2)
def test_hangs(rank):
    if rank:
        dist.barrier()
""",
        f"--tb={style}",
    )

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "FAILED test_it.py::test_fails - rank 1: assert 1 == 0",
            "FAILED test_it.py::test_hangs - deadlock.missing_rank: rank 1 waits for rank 0, which*",
        ]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_full_traces_and_locals_are_shown_on_demand(run):
    source = """
@pytest.mark.ranks(2)
def test_fails(rank):
    own = rank + 70
    assert rank == 0
"""
    run(source, "--showlocals").stdout.fnmatch_lines(["own        = 71"])
    run(source, "--full-trace").stdout.fnmatch_lines(["*running.py*"])
    run(source).stdout.no_fnmatch_line("*running.py*")


# --- pytest's fixtures inside ranks -----------------------------------------------------------------------------------


def test_a_warning_of_a_rank_is_counted_and_can_be_an_error(run):
    source = """
import warnings

@pytest.mark.ranks(2)
def test_warns(rank):
    warnings.warn("careful", DeprecationWarning)
    dist.barrier()
"""
    result = run(source)
    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines(["*DeprecationWarning: careful"])

    result = run(source, "-W", "error::DeprecationWarning")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E       DeprecationWarning: careful"])


def test_a_test_that_returns_something_is_warned_about_as_ever(run):
    source = """
@pytest.mark.ranks(2)
def test_returns(rank):
    return rank or None
"""
    result = run(source)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PytestReturnNotNoneWarning: test_it.py::test_returns returned something*"])
    result.stdout.fnmatch_lines(["*test_it.py:6: PytestReturnNotNoneWarning*"])
    run(source.replace("rank or None", "None")).assert_outcomes(passed=1)

    result = run(source, "-W", "error")
    result.assert_outcomes(failed=1)
    assert report_of(result, "test_returns") == [
        "PytestReturnNotNoneWarning: test_it.py::test_returns returned something, expected None: "
        "did you mean to assert?"
    ]


def test_a_test_that_fails_and_returns_something_is_its_failure(run):
    result = run(
        """
@pytest.mark.ranks(2)
def test_hangs(rank):
    if rank:
        dist.barrier()
    return 3
""",
        "-W",
        "error",
    )

    result.assert_outcomes(failed=1, warnings=0)
    assert report_of(result, "test_hangs")[0] == "DEADLOCK  deadlock.missing_rank  at step 3"


def test_without_the_plugins_for_capturing_and_debugging(run):
    source = """
@pytest.mark.ranks(2)
def test_prints(rank):
    print("from", rank)
    assert not rank
"""
    result = run(source, "-p", "no:capture", "-p", "no:debugging", "-p", "no:logging")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*from 0", "from 1"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups")
def test_an_exception_group_says_whose_it_is(run):
    result = run("""
@pytest.mark.ranks(2)
def test_group(rank):
    raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
""")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ranks 0, 1 raised ExceptionGroup: several (2 sub-exceptions) at test_it.py:8"])


def test_a_rank_that_is_stuck_is_told_with_its_stack(run, monkeypatch):
    monkeypatch.setattr(sys, "lock_of_this_test", lock := threading.Lock(), raising=False)
    with lock:  # once it is released, the thread left behind ends
        result = run("""
import sys

@pytest.mark.ranks(2, budget={"stuck_seconds": 0.2})
def test_stuck(rank):
    if rank == 1:
        lock = sys.lock_of_this_test
        lock.acquire()
    dist.barrier()
""")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["STUCK  stuck", "*lock.acquire()*", "  replay  pytest test_it.py::test_stuck*"])
    result.stdout.no_fnmatch_line("*running.py*")
