"""Ranks that skip, and what stands behind the `yield` of their fixtures: neither hides what failed."""

import pytest

from tests.pytest_plugin.reading import replay_of, report_of

MISMATCH = "dist.barrier() if rank == 0 else dist.all_reduce(torch.ones(1))"
CYCLE = "dist.recv(torch.zeros(1), src=1 - rank)"


def skips(calls, *, way="pytest.skip('not here')", options=""):
    """Two ranks make calls, and the third goes another way."""
    return f"""
@pytest.mark.ranks(3{options})
def test_it(rank):
    if rank == 2:
        {way}
        return
    {calls}
"""


@pytest.mark.parametrize("way", ["pytest.skip('not here')", "pytest.xfail('known')", "None"])
@pytest.mark.parametrize(("calls", "code"), [(MISMATCH, "mismatch.operation"), (CYCLE, "deadlock.cycle")])
def test_what_is_wrong_among_the_others_wins_over_a_skip(run, way, calls, code):
    result = run(skips(calls, way=way))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"FAILED test_it.py::test_it - {code}: *"])
    assert code in report_of(result, "test_it")[0]
    assert replay_of(result, "test_it")[0] == "test_it.py::test_it"


@pytest.mark.parametrize(
    "calls",
    [
        "dist.barrier()",
        "dist.recv(torch.zeros(1), src=rank + 1)",
        "dist.all_reduce(torch.ones(1), async_op=True)",
        "pass",
    ],
)
def test_what_only_follows_from_a_skip_is_skipped(run, calls):
    result = run(skips(calls), "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*not here (rank 2 of 3)"])


@pytest.mark.parametrize(
    ("calls", "expect", "outcome"),
    [
        (CYCLE, "deadlock.cycle", "passed"),
        (CYCLE, "deadlock.missing_rank", "failed"),
        (CYCLE, "rank_error", "failed"),
        ("dist.barrier()", "deadlock.dead_rank", "skipped"),
    ],
)
def test_a_finding_that_is_expected_does_not_follow_from_a_skip(run, calls, expect, outcome):
    run(skips(calls, options=f", expect={expect!r}")).assert_outcomes(**{outcome: 1})


# --- behind the yield -------------------------------------------------------------------------------------------------


def closes(behind, calls="assert rank != 1, 'of the test'", mark="ranks(2)"):
    """A test, and a fixture of the rank's own."""
    return f"""
@per_rank
def own(rank):
    yield
    {behind}

@pytest.mark.{mark}
def test_it(rank, own):
    {calls}
"""


def xfails(error):
    """Such a test that is expected to raise."""
    return f"xfail(raises={error}, strict=True)\n@pytest.mark.ranks(2)"


@pytest.mark.parametrize("behind", ["pytest.skip('later')", "pytest.xfail('later')"])
def test_a_skip_behind_the_yield_hides_no_failure(run, behind):
    result = run(closes(behind))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 1: AssertionError: of the test*"])
    run(closes(behind, "pass")).assert_outcomes(**{"skipped" if "skip" in behind else "xfailed": 1})


def test_a_failure_of_the_test_leads_and_that_behind_the_yield_is_added(run):
    result = run(closes("raise RuntimeError(f'of {rank}')"))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["* - rank 1: AssertionError: of the test"])
    assert report_of(result, "test_it")[-4:-1] == [
        "  rank 0 raised RuntimeError: of 0 at test_it.py:9",
        "  rank 1 raised AssertionError: of the test at test_it.py:13",
        "  rank 1 also raised RuntimeError: of 1",
    ]


@pytest.mark.parametrize(("raises", "outcome"), [("RuntimeError", "failed"), ("AssertionError", "xfailed")])
def test_an_error_that_is_expected_is_that_of_the_test(run, raises, outcome):
    source = closes("raise RuntimeError('later')", "assert 0, 'of the test'", xfails(raises))
    run(source).assert_outcomes(**{outcome: 1})


def test_a_failure_behind_the_yield_wins_over_a_skip_of_the_test(run):
    result = run(closes("assert 0, 'later'", "pytest.skip('not today')"))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["* - rank 0: AssertionError: later"])
    run(closes("pass", "pytest.skip('not today')")).assert_outcomes(skipped=1)


def test_a_failure_of_the_test_is_shown_even_if_its_rank_waits_behind_the_yield(run):
    result = run(closes("dist.barrier()", "assert rank != 1, 'of the test'; dist.recv(torch.zeros(1), 1)"))

    result.assert_outcomes(failed=1)
    lines = report_of(result, "test_it")
    assert "E       AssertionError: of the test" in lines
    assert any("deadlock.cycle" in line for line in lines)
    result.stdout.fnmatch_lines(["*rank 1: AssertionError: of the test*"])


def test_every_fixture_is_taken_down_and_all_that_fail_are_told(run):
    result = run("""
@per_rank
def outer(rank):
    yield
    raise RuntimeError("outer")

@per_rank
def inner(outer):
    yield
    raise ValueError("inner")

@pytest.mark.ranks(1)
def test_it(inner):
    pass
""")

    result.assert_outcomes(failed=1)
    assert report_of(result, "test_it")[-3:-1] == [
        "  rank 0 raised ValueError: inner at test_it.py:14",
        "  rank 0 also raised RuntimeError: outer",
    ]
