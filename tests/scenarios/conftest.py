"""What the tests of the reports on the command line share."""

import pytest

from ddpsim.scenarios.cli import main


@pytest.fixture
def ddpsim(capsys, tmp_path, monkeypatch):
    """Run `ddpsim` with these words in an empty folder; returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

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
