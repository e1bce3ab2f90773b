"""The programs of the table: each has its bug, with one line that is told."""

import ast

import pytest

from tests.systems.__main__ import SYSTEMS, main


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_program_and_its_bug(system):
    right, wrong, name, line = system.sources()
    ast.parse(right)
    ast.parse(wrong)
    assert name
    assert right != wrong
    assert [each for each in wrong.splitlines() if each.strip().startswith(line)]


def test_what_is_not_installed_is_told(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["systems", "composer"])
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| Composer | not installed: pip install mosaicml |  |  |  |  |  |  |"
    ]
