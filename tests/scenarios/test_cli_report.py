"""`--report DIR` and `--open` of the commands that run something, and `ddpsim report`."""

from pathlib import Path

import pytest

from reports.files import FORMS
from reports.json_form import read
from scenarios.cli import main

ROOT = Path(__file__).resolve().parents[2]
MISSING = "uneven-inputs-without-join"


@pytest.fixture
def ddpsim(capsys):
    """Run `ddpsim` with these words; returns status, stdout and stderr."""

    def run(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def opened(monkeypatch):
    """What a browser would have been asked to show."""
    asked = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    return asked


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_is_reported_in_every_form(ddpsim, tmp_path):
    status, out, err = ddpsim("run", MISSING, "--report", tmp_path / "deep" / "er")
    assert (status, err) == (0, "")
    assert out.endswith(f"as expected: fail, deadlock.missing_rank, rank 1\nreport  {tmp_path}/deep/er/report.html\n")
    assert names(tmp_path / "deep" / "er") == sorted(FORMS)
    run = read(tmp_path / "deep" / "er" / "result.json").runs[0]
    assert (run.name, run.how, run.is_expected) == (MISSING, "policy round_robin", True)
    assert run.text in out
    assert run.conclusion == "as expected: fail, deadlock.missing_rank, rank 1"
    assert run.seconds > 0


def test_without_report_nothing_is_written(ddpsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, out, _ = ddpsim("run", MISSING)
    assert "report" not in out
    assert names(tmp_path) == []
