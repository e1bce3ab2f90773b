"""What a report of a failing test says in its head: what was found and expected, and the policy and seed of the run."""

import pytest

from tests.pytest_plugin.reading import replay_of
from tests.pytest_plugin.test_reports import documents

HANGS = """
@pytest.mark.ranks(2{options})
def test_hangs(rank):
    if rank:
        dist.barrier()
"""
MISSING = "fail, deadlock.missing_rank, rank 0"


def shown(run, pytester, test, *arguments):
    """The document of the only failing test."""
    run(test, "--ddpsim-report", "made", *arguments).assert_outcomes(failed=1)
    (document,) = documents(pytester.path / "made").values()
    return document


@pytest.mark.parametrize(
    ("options", "arguments", "how"),
    [
        ("", (), "policy round_robin"),
        (", policy='random', seed=3", (), "policy random, seed 3"),
        (", seeds=[5]", (), "policy random, seed 5"),
        (", policy='random', seed=3", ("--ddpsim-seed", "8"), "policy random, seed 8"),
        ("", ("--ddpsim-policy", "pct", "--ddpsim-seed", "2"), "policy pct, seed 2"),
        (", transport='gloo'", (), "on gloo  policy round_robin"),
    ],
)
def test_how_a_test_was_run(run, pytester, options, arguments, how):
    test = HANGS.format(options=options)
    document = shown(
        run, pytester, test.replace("(rank)", "(rank, ddpsim_seed)") if "seeds" in options else test, *arguments
    )

    assert [each.how for each in document.runs] == [how]
    assert how in (next((pytester.path / "made").glob("*/report.txt"))).read_text().partition("\n")[0]


def test_how_a_replay_was_run(run, pytester):
    _, token = replay_of(run(HANGS.format(options="")), "test_hangs")

    assert shown(run, pytester, HANGS.format(options=""), "--ddpsim-replay", token).runs[0].how == "replayed"


@pytest.mark.parametrize(
    ("explore", "how"), [("True", "policy dpor"), ("{'policy': 'dfs', 'preemptions': 2}", "policy dfs")]
)
def test_how_an_exploration_was_made(run, pytester, explore, how):
    document = shown(run, pytester, HANGS.format(options=f", explore={explore}"))

    assert document.runs[0].how == how
    assert document.exploration.conclusion == "not as expected: found fail; expected pass"


def test_what_was_found_and_expected_of_a_deadlock(run, pytester):
    document = shown(run, pytester, HANGS.format(options=""))

    assert document.runs[0].conclusion == f"not as expected: found {MISSING}; expected pass"
    assert document.runs[0].is_expected is False


def test_what_was_found_and_expected_of_an_error(run, pytester):
    document = shown(run, pytester, "@pytest.mark.ranks(2)\ndef test_fails(rank):\n    assert not rank\n")

    assert document.runs[0].conclusion == "not as expected: found fail, rank_error, rank 1; expected pass"


def test_what_was_found_and_expected_where_the_marker_says_it(run, pytester):
    document = shown(run, pytester, HANGS.format(options=", expect='deadlock.cycle'"))

    assert document.runs[0].conclusion == f"not as expected: found {MISSING}; expected fail, deadlock.cycle"


def test_an_error_of_the_tests_own_may_have_a_line(run, pytester):
    test = """
class ParseError(Exception):
    line = {line!r}

@pytest.mark.ranks(2)
def test_parses(rank):
    raise ParseError
"""
    for line in (5, "import os"):
        conclusion = shown(run, pytester, test.format(line=line)).runs[0].conclusion
        assert conclusion == "not as expected: found fail, rank_error, ranks 0, 1; expected pass"
