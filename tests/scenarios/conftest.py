"""What the tests of the command line share."""

import pytest

from ddpsim.scenarios.cli import main


@pytest.fixture
def console(capsys):
    """Run `ddpsim` with these words; returns status, stdout and stderr."""

    def run(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def ddpsim(console, tmp_path, monkeypatch):
    """The same in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return console


@pytest.fixture
def opened(monkeypatch):
    """What a browser would have been asked to show."""
    asked = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    return asked


@pytest.fixture
def write(tmp_path):
    """Write a file into the test's folder, and return its path."""

    def written(text, name="own.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written
