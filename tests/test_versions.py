"""The command that runs the tests under other versions: what it runs, and what it says of it."""

import sys

import pytest

from tests import versions
from tests.versions import PASSED, STEPS, Pair, last_line, results, table

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def only_this_python(monkeypatch):
    monkeypatch.setattr(versions, "interpreters", lambda: iter([(HERE, sys.executable)]))


def test_each_step_runs_in_an_environment_of_its_own(only_this_python):
    commands = []

    def run(command):
        commands.append(command)
        return (1, "3 failed\n2 passed\n\n") if "zoo" in command else (0, "")

    assert results(Pair(HERE, "2.13.0"), run) == {"default tests": PASSED, "zoo": "2 passed", "conformance": PASSED}
    make, install, *steps = commands
    assert make[:3] == [sys.executable, "-m", "venv"]
    python = f"{make[3]}/bin/python"
    assert install[0] == python
    assert "torch==2.13.0" in install
    assert steps == [[python, *words] for words in STEPS.values()]


def test_where_there_is_no_such_python_or_torch_nothing_runs(only_this_python):
    assert results(Pair("3.99", "2.13.0"), None) == {"environment": "no such Python here"}
    said = results(Pair(HERE, "9.0"), lambda command: (1, "no version 9.0") if "pip" in command else (0, ""))
    assert said == {"environment": "no version 9.0"}


def test_the_table():
    assert table([(Pair("3.13", "2.15.0"), {"default tests": PASSED, "zoo": PASSED, "conformance": "2 new"})]) == (
        "| Python | torch | default tests | zoo | conformance |\n|---|---|---|---|---|\n"
        "| 3.13 | 2.15.0 | passes | passes | 2 new |"
    )


@pytest.mark.parametrize("text", ["3.13", "3.9:2.13.0", "2.13.0:3.13", "3.13:new"])
def test_what_is_no_pair(text, capsys):
    with pytest.raises(SystemExit) as ended:
        versions.main([text])
    assert ended.value.code == 2
    assert f"{text!r}, expected PYTHON:TORCH with Python 3.10 to 3.14" in capsys.readouterr().err


def test_the_interpreters_that_are_there(capsys):
    assert versions.main(["--list"]) == 0
    assert last_line("\n a \n\n") == "a"
    assert capsys.readouterr().out.strip()
