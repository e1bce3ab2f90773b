"""`ddpsim doctor`: what is missing is told, with exit status 1; where nothing is, 0."""

import json
import sys
from importlib import metadata

import pytest

from ddpsim.scenarios.cli import doctor as command
from ddpsim.scenarios.cli.commands import main
from ddpsim.simulator.foreign_names import names
from ddpsim.simulator.imports import TESTED


@pytest.fixture
def with_table(monkeypatch):
    """Let the table be these rows."""

    def put(text):
        monkeypatch.setattr(
            names, "load_table", lambda: tuple(names.parse_table(f"[ranks] virtual time in ranks\n{text}"))
        )

    return put


def test_a_name_that_is_missing_is_told(with_table, capsys):
    with_table("replaced  time sleep no_such_clock")
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "missing:      1",
        "  time.no_such_clock: no_such_clock is missing",
        "    disables: virtual time in ranks (ranks)",
    ]


def test_a_machine_that_has_all_is_well(with_table, capsys):
    with_table("replaced  time sleep")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "missing:      nothing that ddpsim needs"
    for title in ("tested:", "system:", "free memory:", "GPUs:", "compilers:", "optional:"):
        assert f"\n{title}" in said


def test_it_is_told_as_json(with_table, capsys):
    with_table("replaced  threading.Thread join (self seconds)")
    assert main(["doctor", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["problems"] == [
        {
            "name": "threading.Thread.join",
            "problem": "takes (self, timeout), expected (self, seconds)",
            "disables": "virtual time in ranks (ranks)",
        }
    ]
    assert facts["tested_with"] == [{"python": python, "torch": torch} for python, torch in TESTED]
    assert facts["free_memory_bytes"] > 0


@pytest.mark.parametrize("error", [ImportError("libtorch.so: cannot open\nsecond line"), OSError("no kernel image")])
def test_a_torch_that_is_broken_is_one_line(error, monkeypatch, capsys):
    def broken(name):
        raise error

    monkeypatch.setattr(command, "import_module", broken)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    line = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert lines[-3:] == [
        "missing:      1",
        f"  torch: cannot be imported ({line}): reinstall it",
        "    disables: everything",
    ]
    assert "torch missing: not tested" in lines[0]


def test_a_torch_that_is_too_old_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["torch"], "__version__", "2.10.1")
    assert main(["doctor"]) == 1
    assert "  torch: torch is 2.10.1, expected 2.11 or newer: pip install 'torch>=2.11'\n" in capsys.readouterr().out


def test_it_runs_from_a_folder_of_sources_that_nobody_installed(with_table, monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with_table("replaced  time sleep")
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.startswith("ddpsim from its sources, Python ")
