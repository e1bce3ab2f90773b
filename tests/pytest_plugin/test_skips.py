"""Ranks that skip, and what stands behind the `yield` of their fixtures: neither hides what failed."""

import pytest

from tests.pytest_plugin.reading import marked

MISMATCH = "dist.barrier() if rank == 0 else dist.all_reduce(torch.ones(1))"
CYCLE = "dist.recv(torch.zeros(1), src=1 - rank)"


def skips(calls, *, way="pytest.skip('not here')", options=""):
    """Two ranks make calls, and the third goes another way."""
    return marked(f"if rank == 2:\n    {way}\n    return\n{calls}", f"ranks(3{options})")


@pytest.mark.parametrize("way", ["pytest.skip('not here')", "pytest.xfail('known')", "None"])
@pytest.mark.parametrize(("calls", "code"), [(MISMATCH, "mismatch.operation"), (CYCLE, "deadlock.cycle")])
def test_what_is_wrong_among_the_others_wins_over_a_skip(fails, way, calls, code):
    failure = fails(skips(calls, way=way))
    assert failure.summary.startswith(f"{code}: ")
    assert code in failure.lines[0]
    assert failure.token


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


def closes(behind, calls="assert rank != 1, 'of the test'", mark="ranks(2)"):
    """A test, and a fixture of the rank's own."""
    return f"\n@per_rank\ndef own(rank):\n    yield\n    {behind}\n" + marked(calls, mark, arguments="rank, own")


def xfails(error):
    """Such a test that is expected to raise."""
    return f"xfail(raises={error}, strict=True)\n@pytest.mark.ranks(2)"


@pytest.mark.parametrize("behind", ["pytest.skip('later')", "pytest.xfail('later')"])
def test_a_skip_behind_the_yield_hides_no_failure(run, fails, behind):
    assert fails(closes(behind)).summary.startswith("rank 1: AssertionError: of the test")
    run(closes(behind, "pass")).assert_outcomes(**{"skipped" if "skip" in behind else "xfailed": 1})


def test_a_failure_of_the_test_leads_and_that_behind_the_yield_is_added(fails):
    failure = fails(closes("raise RuntimeError(f'of {rank}')"))
    assert failure.summary == "rank 1: AssertionError: of the test"
    assert failure.lines[-4:-1] == [
        "  rank 0 raised RuntimeError: of 0 at test_it.py:9",
        "  rank 1 raised AssertionError: of the test at test_it.py:13",
        "  rank 1 also raised RuntimeError: of 1",
    ]


@pytest.mark.parametrize(("raises", "outcome"), [("RuntimeError", "failed"), ("AssertionError", "xfailed")])
def test_an_error_that_is_expected_is_that_of_the_test(run, raises, outcome):
    source = closes("raise RuntimeError('later')", "assert 0, 'of the test'", xfails(raises))
    run(source).assert_outcomes(**{outcome: 1})


def test_a_failure_behind_the_yield_wins_over_a_skip_of_the_test(run, fails):
    skip = "pytest.skip('not today')"
    assert fails(closes("assert 0, 'later'", skip)).summary == "rank 0: AssertionError: later"
    run(closes("pass", skip)).assert_outcomes(skipped=1)


def test_a_failure_of_the_test_is_shown_even_if_its_rank_waits_behind_the_yield(fails):
    failure = fails(closes("dist.barrier()", "assert rank != 1, 'of the test'; dist.recv(torch.zeros(1), 1)"))
    assert "E       AssertionError: of the test" in failure.lines
    assert any("deadlock.cycle" in line for line in failure.lines)
    assert failure.summary.startswith("rank 1: AssertionError: of the test")


def test_every_fixture_is_taken_down_and_all_that_fail_are_told(fails):
    fixtures = "".join(
        f"\n@per_rank\ndef {name}({below}):\n    yield\n    raise {error}('{name}')\n"
        for name, below, error in [("outer", "rank", "RuntimeError"), ("inner", "outer", "ValueError")]
    )
    assert fails(fixtures + marked("pass", "ranks(1)", arguments="inner")).lines[-3:-1] == [
        "  rank 0 raised ValueError: inner at test_it.py:14",
        "  rank 0 also raised RuntimeError: outer",
    ]
