"""`@given` and the marker: each example is a run on all ranks; it shrinks, and comes back from the database."""

import sys

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.pytest_plugin.reading import replay_of, report_of

HYPOTHESIS = """
from hypothesis import assume, given, note, settings, HealthCheck, strategies as st
seen = []
"""
ORDERS = {
    "marker above": "@pytest.mark.ranks(2)\n@given(x=st.integers(0, 1000))",
    "marker below": "@given(x=st.integers(0, 1000))\n@pytest.mark.ranks(2)",
    "settings": "@settings(max_examples=50)\n@pytest.mark.ranks(2)\n@given(x=st.integers(0, 1000))",
}


@pytest.fixture
def run(run, pytester):
    """With hypothesis' own plugin, and a database of the test's own."""
    before = settings.get_current_profile_name()
    settings.register_profile("pytester", database=DirectoryBasedExampleDatabase(pytester.path / "examples"))
    settings.load_profile("pytester")
    yield lambda source, *options: run(source and HYPOTHESIS + source, "-p", "_hypothesis_pytestplugin", *options)
    settings.load_profile(before)


@pytest.mark.parametrize("order", ORDERS)
def test_a_failing_example_shrinks_and_names_the_rank(run, order):
    result = run(f"""
{ORDERS[order]}
def test_it(rank, x):
    dist.barrier()
    if rank == 1:
        assert x < 37
""")

    result.assert_outcomes(failed=1)
    lines = report_of(result, "test_it")
    assert "E           assert 37 < 37" in lines
    assert "E               x=37," in lines
    assert lines[-2].startswith("  rank 1 raised AssertionError: assert 37 < 37")
    assert replay_of(result, "test_it")[0] == "test_it.py::test_it"


@pytest.mark.parametrize("order", ORDERS)
def test_examples_that_all_pass_are_as_many_as_asked_for(run, order):
    result = run(f"""
{ORDERS[order]}
def test_it(rank, world_size, x):
    each = torch.tensor([x])
    dist.all_reduce(each)
    assert each == world_size * x
    seen.append((rank, x))

def test_seen():
    assert len(seen) == 2 * {50 if order == "settings" else 100}
    assert [rank for rank, _ in seen].count(0) == len(seen) / 2
""")

    result.assert_outcomes(passed=2)


def test_a_deadlock_shrinks_to_its_simplest_example(run):
    result = run("""
@pytest.mark.ranks(3)
@given(steps=st.lists(st.integers(0, 3)))
def test_it(rank, steps):
    for step in steps:
        if step != 2 or rank:
            dist.barrier()
""")

    result.assert_outcomes(failed=1)
    lines = report_of(result, "test_it")
    assert lines[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert "      steps=[2]," in lines
    assert replay_of(result, "test_it")[0] == "test_it.py::test_it"


def test_the_database_brings_the_failure_back_at_once(run):
    source = """
@pytest.mark.ranks(2)
@given(x=st.integers(0, 10**6))
def test_it(rank, x):
    if not rank:
        print("drew", x)
        seen.append(x)
    assert x < 4321

def test_seen():
    assert EXPECTED
"""
    run(source.replace("EXPECTED", "len(seen) > 4")).assert_outcomes(failed=1, passed=1)
    again = run(source.replace("EXPECTED", "set(seen) == {4321}"))
    again.assert_outcomes(failed=1, passed=1)


def test_the_token_replays_the_schedule_with_the_example_of_the_database(run):
    first = run("""
@pytest.mark.ranks(3, policy="random", seed=1)
@given(wrong=st.integers(1, 2))
def test_it(rank, wrong):
    got = torch.zeros(1)
    if rank:
        dist.send(torch.ones(1) * rank, 0)
    else:
        dist.recv(got)
        assert got != wrong
        dist.recv(got)
""")
    _, token = replay_of(first, "test_it")

    again = run("", "--ddpsim-replay", token)

    again.assert_outcomes(failed=1)
    assert replay_of(again, "test_it")[1] == token


def test_what_hypothesis_offers_inside_a_test_works_on_ranks(run):
    result = run("""
@settings(max_examples=20)
@pytest.mark.ranks(2)
@given(data=st.data(), even=st.integers(0, 100))
def test_it(rank, data, even):
    assume(even % 2 == 0)
    note(f"rank {rank}")
    drawn = data.draw(st.integers(0, even))
    dist.barrier()
    seen.append(drawn)
    assert drawn <= even and even % 2 == 0

def test_seen():
    assert len(seen) == 40
""")

    result.assert_outcomes(passed=2)


def test_seeds_parameters_methods_and_own_fixtures(run):
    result = run("""
@per_rank
def box():
    return []

class TestIt:
    @settings(max_examples=5)
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.ranks(2, seeds=range(2))
    @given(x=st.integers())
    def test_it(self, n, rank, box, x):
        assert box == [] and isinstance(self, TestIt)  # a new one for each example
        box.append(x)
        dist.barrier()
""")

    result.assert_outcomes(passed=4)


def test_an_exploration_of_each_example(run):
    result = run("""
@pytest.mark.ranks(3, explore=True)
@given(late=st.booleans())
def test_it(rank, late):
    got = torch.zeros(1)
    if rank:
        dist.send(torch.ones(1) * rank, 0)
    else:
        dist.recv(got)
        assert got == 1 or not late
        dist.recv(got)
""")

    result.assert_outcomes(failed=1)
    assert "E               late=True," in report_of(result, "test_it")


def test_an_expected_finding_of_every_example(run):
    result = run("""
@settings(max_examples=10)
@pytest.mark.ranks(2, expect="deadlock.missing_rank")
@given(x=st.integers(0, 9))
def test_all(rank, x):
    if rank:
        dist.barrier()

@settings(max_examples=100)
@pytest.mark.ranks(2, expect="deadlock.missing_rank")
@given(x=st.integers(0, 9))
def test_some(rank, x):
    if rank or x > 4:
        dist.barrier()
""")

    result.assert_outcomes(passed=1, failed=1)
    assert report_of(result, "test_some")[0].startswith("not as expected: found pass; expected fail, deadlock")
    assert "      x=5," in report_of(result, "test_some")


def test_a_deadline_holds_only_where_a_test_sets_one(run):
    result = run(
        """
import time

@pytest.mark.ranks(1)
@settings(max_examples=2)
@given(x=st.booleans())
def test_slow(rank, x):
    end = BUSY() + 0.25
    while BUSY() < end:
        pass

@pytest.mark.ranks(1)
@settings(max_examples=2, deadline=50)
@given(x=st.booleans())
def test_limited(rank, x):
    end = BUSY() + 0.1
    while BUSY() < end:
        pass
""".replace("BUSY", "time.process_time")
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E * hypothesis.errors.DeadlineExceeded: *deadline of 50.00ms*"])
    result.stdout.no_fnmatch_line("*replay*")


def test_an_async_test_is_one_line(run):
    result = run("""
@pytest.mark.ranks(2)
@given(x=st.integers())
async def test_it(rank, x):
    pass
""")

    result.assert_outcomes(failed=1)
    assert report_of(result, "test_it") == [
        "@pytest.mark.ranks: test_it is async, expected a plain function: ranks are threads, not tasks"
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups")
def test_two_ways_to_fail_are_both_told(run):
    result = run("""
@pytest.mark.ranks(2)
@given(x=st.integers(0, 9))
def test_it(rank, x):
    if x > 7 and rank:
        assert x < 8
    if x != 3 or rank:
        dist.barrier()
""")

    result.assert_outcomes(failed=1)
    lines = report_of(result, "test_it")
    assert [line.strip(" |") for line in lines if "  x=" in line] == ["x=8,", "x=3,"]
    assert any("AssertionError: assert 8 < 8" in line for line in lines)
    assert "    | RanksFailed: DEADLOCK  deadlock.missing_rank  at step 3" in lines
    assert "    |   rank 1 raised AssertionError: assert 8 < 8" in [line.partition(" at test_it")[0] for line in lines]
    tokens = [line.rpartition(" ")[2] for line in lines if "replay  pytest test_it.py::test_it --ddpsim-replay" in line]
    assert len(tokens) == 2
    result.stdout.no_fnmatch_line("*running.py*")
    result.stdout.no_fnmatch_line("*- ddpsim -*")


def test_an_explicit_example_fails_as_any_other(run):
    result = run("""
from hypothesis import example

@pytest.mark.ranks(2)
@example(x=-1)
@given(x=st.integers(0, 1000))
def test_it(rank, x):
    if x >= 0 or rank:
        dist.barrier()
""")

    result.assert_outcomes(failed=1)
    assert "      x=-1," in report_of(result, "test_it")
