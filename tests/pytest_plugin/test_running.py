"""A marked test runs on every rank; what it gets there, and what pytest's own means do there."""

import sys
import threading
from math import inf

import pytest
from hypothesis.errors import UnsatisfiedAssumption

from ddpsim import Budget, simulate
from ddpsim.scenarios.pytest_plugin import running
from ddpsim.scenarios.pytest_plugin.rank_output import Severity, severity_of_error
from tests.pytest_plugin.reading import HANGS, marked

PASSING = {
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


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("pytest.skip('not here')", "not here"),
        ("if rank in (1, 2):\n    pytest.skip('not here')\ndist.barrier()", "not here (ranks 1, 2 of 4)"),
    ],
)
def test_a_skip_on_all_ranks_or_some_skips_the_test_and_says_so(run, body, told):
    result = run(marked(body, "ranks(4)"), "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*: {told}"])


def test_xfail_fail_and_raises_mean_the_same_on_a_rank(run, fails):
    run(marked("pytest.xfail('known')")).assert_outcomes(xfailed=1)
    run(marked("with pytest.raises(ZeroDivisionError):\n    rank / 0\ndist.barrier()")).assert_outcomes(passed=1)
    assert "E       Failed: on purpose" in fails(marked("pytest.fail('on purpose')")).lines


@pytest.mark.parametrize(
    ("terms", "body", "outcome"),
    [
        ("strict=True", HANGS, "xfailed"),
        ("strict=True", "dist.barrier()", "failed"),
        ("raises=AssertionError", "assert not rank", "xfailed"),
        ("raises=AssertionError", HANGS, "failed"),
    ],
)
def test_an_xfail_is_met_by_a_deadlock_and_broken_by_a_pass_or_another_error(run, terms, body, outcome):
    result = run(marked(body, f"xfail({terms})\n@pytest.mark.ranks(2)"))
    result.assert_outcomes(**{outcome: 1})
    assert ("XPASS(strict)" in result.stdout.str()) == (body == "dist.barrier()")


def test_who_ends_the_session_or_steers_a_search_leaves_the_run():
    leaving = [KeyboardInterrupt(), pytest.exit.Exception("enough"), UnsatisfiedAssumption()]
    assert {severity_of_error(each) for each in leaving} == {Severity.LEAVES}
    assert severity_of_error(ValueError()) is Severity.FAILS


@pytest.mark.tier("ci")
def test_exit_on_a_rank_ends_the_session(run):
    result = run(marked("pytest.exit('enough')") + "\ndef test_never():\n    pass\n")
    result.assert_outcomes()
    result.stdout.fnmatch_lines(["*Exit: enough*"])


def of_four(body):
    """A test that has the numbers from 0 to 3, and fails for some of them."""
    return marked(body, 'ranks(2)\n@pytest.mark.parametrize("n", range(4))', arguments="rank, n")


def test_x_stops_after_the_first_failure(run):
    source = of_four("if rank == n:\n    dist.barrier()")
    run(source, "-x").assert_outcomes(failed=1)
    run(source, "--maxfail=2").assert_outcomes(failed=2)
    run(source).assert_outcomes(failed=2, passed=2)


def test_last_failed_runs_the_failing_one_again(run, fails):
    source = of_four("if rank == n == 1:\n    dist.barrier()")
    run(source, "-p", "cacheprovider").assert_outcomes(failed=1, passed=3)
    again = fails("", "-p", "cacheprovider", "--lf")
    again.stdout.fnmatch_lines(["run-last-failure: rerun previous 1 failure"])


def test_pdb_looks_at_the_rank_that_failed_afterwards(fails, monkeypatch):
    typed = iter(["p ('here', rank, own)", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))

    failure = fails(marked("own = rank * 10\ndist.barrier()\nassert own < 20", "ranks(3)"), "--pdb")
    failure.stdout.fnmatch_lines(["*('here', 2, 20)"])


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_a_debugger_stops_in_each_rank_and_has_time(run, monkeypatch, option):
    stops, given = [], []
    monkeypatch.setattr("builtins.input", lambda prompt="": stops.append(prompt) or "c")
    monkeypatch.setattr(
        running, "simulate", lambda *rest, budget, **named: given.append(budget) or simulate(*rest, **named)
    )

    body = ("breakpoint()\n" if option == "--pdb" else "") + "dist.barrier()"
    run(marked(body, "ranks(2, budget={'stuck_seconds': 0.05, 'steps': 1000})"), option).assert_outcomes(passed=1)
    assert given == [Budget(seconds=inf, stuck_seconds=inf, steps=1000)]
    # For --trace pytest makes one debugger for all, before there are ranks.
    assert stops == (["(rank 0) ", "(rank 1) "] if option == "--pdb" else ["(Pdb) "] * 2)


@pytest.mark.parametrize("style", ["short", "line", "native", "no", "long"])
def test_styles_of_tracebacks(run, style):
    source = marked("assert rank == 0", name="test_fails") + marked(HANGS, name="test_hangs")
    result = run(source, f"--tb={style}")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "FAILED test_it.py::test_fails - rank 1: assert 1 == 0",
            "FAILED test_it.py::test_hangs - deadlock.missing_rank: rank 1 waits for rank 0, which*",
        ]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_full_traces_and_locals_are_shown_on_demand(run):
    source = marked("own = rank + 70\nassert rank == 0")
    run(source, "--showlocals").stdout.fnmatch_lines(["own        = 71"])
    run(source, "--full-trace").stdout.fnmatch_lines(["*running.py*"])
    run(source).stdout.no_fnmatch_line("*running.py*")


def test_a_warning_of_a_rank_is_counted_and_can_be_an_error(run, fails):
    source = "import warnings\n" + marked("warnings.warn('careful', DeprecationWarning)\ndist.barrier()")
    result = run(source)
    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines(["*DeprecationWarning: careful"])

    assert "E       DeprecationWarning: careful" in fails(source, "-W", "error::DeprecationWarning").lines


def test_a_test_that_returns_something_is_warned_about_as_ever(run, fails):
    source = marked("return rank or None", name="test_returns")
    result = run(source)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PytestReturnNotNoneWarning: test_it.py::test_returns returned a value*"])
    result.stdout.fnmatch_lines(["*test_it.py:6: PytestReturnNotNoneWarning*"])
    run(source.replace("rank or None", "None")).assert_outcomes(passed=1)
    assert fails(source, "-W", "error").lines == [
        "PytestReturnNotNoneWarning: test_it.py::test_returns returned a value, expected None: did you mean to assert?"
    ]


def test_a_test_that_fails_and_returns_something_is_its_failure(fails):
    failure = fails(marked(f"{HANGS}\nreturn 3"), "-W", "error", warnings=0)
    assert failure.lines[0] == "DEADLOCK  deadlock.missing_rank  at step 3"


def test_without_the_plugins_for_capturing_and_debugging(fails):
    without = [word for name in ("capture", "debugging", "logging") for word in ("-p", f"no:{name}")]
    failure = fails(marked('print("from", rank)\nassert not rank'), *without)
    failure.stdout.fnmatch_lines(["*from 0", "from 1"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups")
def test_an_exception_group_says_whose_it_is(fails):
    failure = fails(marked('raise ExceptionGroup("several", [ValueError(1), KeyError(2)])'))
    failure.stdout.fnmatch_lines(["*ranks 0, 1 raised ExceptionGroup: several (2 sub-exceptions) at test_it.py:8"])


def test_a_rank_that_is_stuck_is_told_with_its_stack(fails, monkeypatch):
    monkeypatch.setattr(sys, "lock_of_this_test", lock := threading.Lock(), raising=False)
    with lock:  # once it is released, the thread left behind ends
        body = "if rank == 1:\n    lock = sys.lock_of_this_test\n    lock.acquire()\ndist.barrier()"
        failure = fails("import sys\n" + marked(body, 'ranks(2, budget={"stuck_seconds": 0.2})', name="test_stuck"))
    failure.stdout.fnmatch_lines(["STUCK  stuck", "*lock.acquire()*", "  replay  pytest test_it.py::test_stuck*"])
    failure.stdout.no_fnmatch_line("*running.py*")
