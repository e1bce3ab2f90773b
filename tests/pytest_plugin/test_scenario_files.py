"""Scenario files as tests: a saved failure is a test. Run in pytest's own test directories."""

import pytest

EXTRA_CALL = """ddpsim = 1
summary = "rank 1 makes a call more than rank 0"

[[rank]]
steps = []

[[rank]]
steps = [
    {issue = "a", operation = "all_reduce", shapes = [[4]], dtype = "float32", reduction = "SUM"},
    {wait = "a"},
]
"""
EXPECTED_TO_PASS = EXTRA_CALL + "\n[expect]\n"


@pytest.fixture
def run(run, pytester):
    """Write files, run pytest on some, and return what it says."""

    def run_pytest(files, *arguments):
        for name, text in files.items():
            pytester.makefile(".toml", **{name.removesuffix(".toml"): text})
        return run("", *arguments)

    return run_pytest


def test_a_saved_failure_passes_as_long_as_it_fails_as_expected(run):
    result = run({"extra.toml": EXTRA_CALL}, "-v")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["extra.toml::torch PASSED*"])


def test_what_comes_to_something_else_fails_with_the_diagnosis_and_no_traceback(run):
    result = run({"extra.toml": EXPECTED_TO_PASS})

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*extra.toml: rank 1 makes a call more than rank 0*",
            "DEADLOCK  deadlock.missing_rank*",
            "  replay  ddpsim replay extra.toml s1:0:*",
            "not as expected: found fail, deadlock.missing_rank, rank 0; expected pass without a finding",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*scenario_files.py*")


def test_the_engine_of_the_file_runs_it(run):
    result = run({"own.toml": 'ddpsim = 1\nsummary = "x"\nruns_on = "ddp"\n[expect]\noracle = true\n'}, "-v")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["own.toml::ddp PASSED*"])


def test_other_toml_files_are_left_alone(run):
    files = {"pyproject.toml": "[tool.x]\na = 1\n", "broken.toml": "[[[", "plain.toml": 'summary = "x"\n'}

    run(files).assert_outcomes()


@pytest.mark.parametrize(
    "text",
    [
        '[tool.poetry.dependencies]\nddpsim = "^0.1"\n',
        "[tool.own]\nddpsim = 1\n",
        "  [entry]\n# ddpsim\nddpsim = 1 # the version\n",
        'ddpsim = "^0.1"\n',
        "ddpsim = [1]\n",
    ],
)
def test_a_file_that_mentions_ddpsim_is_no_scenario(run, text):
    run({"pyproject.toml": text, "extra.toml": EXTRA_CALL}).assert_outcomes(passed=1)


def test_a_version_with_a_comment_behind_others_counts(run):
    text = EXTRA_CALL.replace("ddpsim = 1\n", "").replace("\n\n", "\nddpsim=1  # the version\n\n", 1)
    run({"extra.toml": text}).assert_outcomes(passed=1)


def test_a_file_that_is_named_needs_no_version(run):
    run({"plain.toml": 'summary = "x"\n'}, "plain.toml").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ddpsim = 2\nsummary = 'x'", "*extra.toml:1: ddpsim is 2, expected 1*"),
        (EXTRA_CALL[:-20], "*extra.toml:* is not TOML*"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_the_others_run(run, text, told):
    result = run({"extra.toml": text, "good.toml": EXTRA_CALL}, "--continue-on-collection-errors")

    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*Traceback*")
