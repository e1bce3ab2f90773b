"""Each tier runs what it should; what else there is is deselected, and a wrong mark is told."""

import sys
from pathlib import Path

import pytest

from tests.tiers import may_mark_for_ci

TESTS = """
import pytest
from tests.tiers import sweep

def test_plain(): pass

@pytest.mark.tier("ci")
def test_ci(): pass

@pytest.mark.tier("nightly")
def test_nightly(): pass

@pytest.mark.tier("ci")
@pytest.mark.parametrize(("n", "square"), sweep([(1, 1), (2, 4)], lambda case: case[0] == 1))
def test_sweep(n, square):
    assert n * n == square

@pytest.mark.parametrize("n", sweep([1, pytest.param(2, id="two")], lambda case: case == 1))
def test_values(n): pass
"""


@pytest.fixture
def run(pytester):
    def run(*arguments, tests=TESTS):
        pytester.makepyfile(tests)
        return pytester.runpytest_inprocess(
            *arguments, "-p", "tests.tiers", "-p", "no:cacheprovider", "--strict-markers"
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), {"test_plain", "test_values[1]"}),
        (("--tier", "ci"), {"test_ci", "test_sweep[1-1]"}),
        (
            ("--tier", "nightly"),
            {"test_plain", "test_ci", "test_nightly", "test_sweep[1-1]", "test_sweep[2-4]"}
            | {"test_values[1]", "test_values[two]"},
        ),
    ],
)
def test_what_a_tier_runs(run, arguments, names):
    result = run("-v", *arguments)
    passed = {line.split("::")[1].split()[0] for line in result.outlines if " PASSED " in line}
    assert passed == names
    result.assert_outcomes(passed=len(names), deselected=7 - len(names))


def test_who_marks_for_ci_says_so_in_the_file_or_in_a_conftest():
    files = [file for file in Path(__file__).parent.rglob("*.py") if not file.name.startswith(("test_", "conftest"))]
    runs_tiers = Path(__file__).parent / "mutants" / "__main__.py"  # it names the tier that it runs, and marks nothing
    assert [file.name for file in files if may_mark_for_ci(file) and file != runs_tiers] == ["tiers.py"]


@pytest.mark.parametrize("arguments", [(), ("--tier", "ci"), ("--tier", "nightly")])
@pytest.mark.parametrize("mark", ["('weekly',)", "()", "('ci', 'nightly')"])
def test_a_wrong_mark_fails_in_every_tier(run, mark, arguments):
    test = f"import pytest\n@pytest.mark.tier(*{mark})\ndef test_wrong(): pass\n"
    result = run(*arguments, tests=test)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"tier{mark}, expected tier('ci') or tier('nightly')".replace("[", "[[]")])


def test_a_run_that_selects_nothing_fails(run):
    assert (
        run(tests='import pytest\n@pytest.mark.tier("ci")\ndef test_ci(): pass\n').ret
        == pytest.ExitCode.NO_TESTS_COLLECTED
    )


def test_an_unknown_tier_is_told(run):
    result = run("--tier", "weekly")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*argument --tier: invalid choice: 'weekly' (choose from *ci*, *nightly*)"])


def test_no_test_imports_what_changes_its_whole_process():
    # It gives hypothesis a tenth of the examples, and locks the flags of torch's backends.
    assert "torch.testing._internal.common_utils" not in sys.modules
