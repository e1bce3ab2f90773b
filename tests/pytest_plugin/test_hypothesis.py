"""`@given` and the marker: each example is a run on all ranks; it shrinks, and comes back from the database."""

import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from ddpsim.scenarios.pytest_plugin.hypothesis_runs import adapted_hypothesis_settings
from tests.pytest_plugin.reading import marked, report_of

HYPOTHESIS = """
from hypothesis import assume, given, note, settings, HealthCheck, strategies as st
seen = []
"""
ORDERS = {
    "marker above": "@pytest.mark.ranks(2)\n@given(x=st.integers(0, 1000))",
    "marker below": "@given(x=st.integers(0, 1000))\n@pytest.mark.ranks(2)",
    "settings": "@settings(max_examples=50)\n@pytest.mark.ranks(2)\n@given(x=st.integers(0, 1000))",
}


def drawn(strategy, body, mark="ranks(2)", *, name="test_it"):
    """A test on ranks that draws `x`."""
    return marked(body, f"{mark}\n@given(x={strategy})", name=name, arguments="rank, x")


@pytest.fixture
def run(run, pytester):
    """With hypothesis' own plugin, and a database of the test's own."""
    before = settings.get_current_profile_name()
    examples = DirectoryBasedExampleDatabase(pytester.path / "examples")
    settings.register_profile("pytester", settings.get_profile("default"), database=examples)
    settings.load_profile("pytester")
    yield lambda source, *options: run(source and HYPOTHESIS + source, "-p", "_hypothesis_pytestplugin", *options)
    settings.load_profile(before)


@pytest.mark.parametrize("order", ORDERS)
def test_a_failing_example_shrinks_and_names_the_rank(fails, order):
    failure = fails(f"""
{ORDERS[order]}
def test_it(rank, x):
    dist.barrier()
    if rank == 1:
        assert x < 37
""")
    assert "E           assert 37 < 37" in failure.lines
    assert "E               x=37," in failure.lines
    assert failure.lines[-2].startswith("  rank 1 raised AssertionError: assert 37 < 37")
    assert failure.token


def test_a_deadlock_shrinks_to_its_simplest_example(fails):
    body = "for step in x:\n    if step != 2 or rank:\n        dist.barrier()"
    failure = fails(drawn("st.lists(st.integers(0, 3))", body, "ranks(3)"))
    assert failure.lines[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert "      x=[2]," in failure.lines
    assert failure.token


def test_the_database_brings_the_failure_back_at_once(fails):
    source = drawn("st.integers(0, 10**6)", "if not rank:\n    print('drew', x)\n    seen.append(x)\nassert x < 4321")
    fails(source + "\ndef test_seen():\n    assert len(seen) > 4", passed=1)
    fails(source + "\ndef test_seen():\n    assert set(seen) == {4321}", passed=1)


RECEIVES = """\
got = torch.zeros(1)
if rank:
    dist.send(torch.ones(1) * rank, 0)
else:
    dist.recv(got)
    assert {holds}
    dist.recv(got)"""


def test_the_token_replays_the_schedule_with_the_example_of_the_database(fails):
    body = RECEIVES.format(holds="got != x")
    token = fails(drawn("st.integers(1, 2)", body, "ranks(3, policy='random', seed=1)")).token
    assert fails("", "--ddpsim-replay", token).token == token


def test_what_hypothesis_offers_inside_a_test_works_on_ranks(run):
    run("""
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
""").assert_outcomes(passed=2)


def test_seeds_parameters_methods_and_own_fixtures(run):
    run("""
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
""").assert_outcomes(passed=4)


def test_an_exploration_of_each_example(fails):
    body = RECEIVES.format(holds="got == 1 or not x")
    assert "E               x=True," in fails(drawn("st.booleans()", body, "ranks(3, explore=True)")).lines


@pytest.mark.tier("ci")
def test_an_expected_finding_of_every_example(fails):
    mark = 'ranks(2, expect="deadlock.missing_rank")'
    body = "if rank or x > {least}:\n    dist.barrier()"
    passing = drawn("st.integers(0, 9)", body.format(least=9), mark, name="test_all")
    failure = fails(passing + drawn("st.integers(0, 9)", body.format(least=4), mark), passed=1)
    assert failure.lines[0].startswith("not as expected: found pass; expected fail, deadlock")
    assert "      x=5," in failure.lines


def test_the_deadline_that_a_test_sets_is_kept():
    test = settings(deadline=50)(given(st.none())(lambda x: None))
    with adapted_hypothesis_settings(SimpleNamespace(obj=test)):
        assert test._hypothesis_internal_use_settings.deadline == timedelta(milliseconds=50)


@pytest.mark.tier("ci")
def test_a_deadline_holds_only_where_a_test_sets_one(fails):
    source = "import time\n" + "".join(
        drawn(
            "st.booleans()",
            f"end = time.process_time() + {seconds}\nwhile time.process_time() < end:\n    pass",
            f"ranks(1)\n@settings(max_examples=2{deadline})",
            name=name,
        )
        for name, seconds, deadline in [("test_slow", 0.25, ""), ("test_limited", 0.1, ", deadline=50")]
    )
    failure = fails(source, passed=1)
    assert failure.name == "test_limited"
    failure.stdout.fnmatch_lines(["E * hypothesis.errors.DeadlineExceeded: *deadline of 50.00ms*"])
    failure.stdout.no_fnmatch_line("*replay*")


def test_an_async_test_is_one_line(fails):
    assert fails(drawn("st.integers()", "pass").replace("def", "async def")).lines == [
        "@pytest.mark.ranks: test_it is async, expected a plain function: call asyncio.run in it"
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups")
def test_two_ways_to_fail_are_both_told(run):
    body = "if x > 7 and rank:\n    assert x < 8\nif x != 3 or rank:\n    dist.barrier()"
    result = run(drawn("st.integers(0, 9)", body))
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


def test_an_explicit_example_fails_as_any_other(fails):
    body, mark = "if x >= 0 or rank:\n    dist.barrier()", "ranks(2)\n@example(x=-1)"
    assert "      x=-1," in fails("from hypothesis import example\n" + drawn("st.integers(0, 1000)", body, mark)).lines
