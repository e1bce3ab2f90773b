"""How long the run of a marked test may take: its marker says, or `ddpsim_seconds`, or it is a minute."""

import pytest

from ddpsim.scenarios.pytest_plugin import running

BUDGETS = """
from ddpsim import Budget

@pytest.mark.ranks(1)
def test_plain(rank): pass

@pytest.mark.ranks(1, budget={"steps": 50})
def test_steps(rank): pass

@pytest.mark.ranks(1, budget={"seconds": 7})
def test_own(rank): pass

@pytest.mark.ranks(1, timeout=8)
def test_timeout(rank): pass

@pytest.mark.ranks(1, budget=Budget(steps=40))
def test_object(rank): pass

@pytest.mark.ranks(1, explore=True)
def test_explored(rank): pass

@pytest.mark.ranks(1, explore=True, budget={"executions": 5})
def test_five(rank): pass
"""


@pytest.fixture
def given(monkeypatch):
    """The seconds that runs were given, in their order."""
    seen = []
    for name in ("simulate", "explore"):
        original = getattr(running, name)

        def noted(*arguments, original=original, **named):
            seen.append(named["budget"].seconds)
            return original(*arguments, **named)

        monkeypatch.setattr(running, name, noted)
    return seen


@pytest.mark.parametrize(("ini", "seconds"), [("", 60), ("ddpsim_seconds = 2.5", 2.5)])
def test_the_marker_comes_before_the_option_and_that_before_a_minute(run, pytester, given, ini, seconds):
    pytester.makeini(f"[pytest]\n{ini}")

    run(BUDGETS, "--strict-config").assert_outcomes(passed=7)

    assert given == [seconds, seconds, 7, 8, 600, seconds, seconds]  # a Budget is taken whole


SPINNING = """
@pytest.mark.ranks(2)
def test_spins(rank):
    while rank:
        pass
    dist.barrier()
"""


def test_a_rank_that_computes_for_ever_fails_its_test(run, pytester):
    pytester.makeini("[pytest]\nddpsim_seconds = 0.3")

    result = run(SPINNING)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*budget*", "  replay  pytest test_it.py::test_spins*"])


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan"])
def test_what_is_no_time_is_one_line_before_anything_runs(run, pytester, wrong):
    pytester.makeini(f"[pytest]\nddpsim_seconds = {wrong}")

    result = run(BUDGETS)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        f"ERROR: ddpsim_seconds is '{wrong}', expected a number above 0: the time limit of a marked test"
    ]
