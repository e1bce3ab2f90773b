"""What a report of a failing test says in its head: what was found and expected, and the policy and seed of the run."""

import pytest

from tests.pytest_plugin.reading import HANGS, Failure, marked
from tests.pytest_plugin.test_reports import documents

MISSING = "fail, deadlock.missing_rank, rank 0"
RAISES = "class ParseError(Exception):\n    line = {line}\n" + marked("raise ParseError")
"""An error of the test's own may have a line."""


def hangs(options="", arguments="rank"):
    return marked(HANGS, f"ranks(2{options})", arguments=arguments)


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
    test = hangs(options, "rank, ddpsim_seed" if "seeds" in options else "rank")
    document = shown(run, pytester, test, *arguments)
    assert [each.how for each in document.runs] == [how]
    assert how in (next((pytester.path / "made").glob("*/report.txt"))).read_text().partition("\n")[0]


def test_how_a_replay_was_run(run, pytester):
    token = Failure(run(hangs())).token
    assert shown(run, pytester, hangs(), "--ddpsim-replay", token).runs[0].how == "replayed"


@pytest.mark.parametrize(
    ("explore", "how"), [("True", "policy dpor"), ("{'policy': 'dfs', 'preemptions': 2}", "policy dfs")]
)
def test_how_an_exploration_was_made(run, pytester, explore, how):
    document = shown(run, pytester, hangs(f", explore={explore}"))
    assert document.runs[0].how == how
    assert document.exploration.conclusion == "not as expected: found fail; expected pass"


@pytest.mark.parametrize(
    ("test", "conclusion"),
    [
        (hangs(), f"found {MISSING}; expected pass"),
        (marked("assert not rank"), "found fail, rank_error, rank 1; expected pass"),
        (hangs(", expect='deadlock.cycle'"), f"found {MISSING}; expected fail, deadlock.cycle"),
        *(
            (RAISES.format(line=line), "found fail, rank_error, ranks 0, 1; expected pass")
            for line in (5, "'import os'")
        ),
    ],
)
def test_what_was_found_and_expected(run, pytester, test, conclusion):
    document = shown(run, pytester, test)
    assert document.runs[0].conclusion == f"not as expected: {conclusion}"
    assert document.runs[0].is_expected is False
