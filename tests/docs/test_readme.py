"""The README has the two commands that CI runs, and names the options that there are."""

import re

import pytest

from scenarios.cli import main
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run-command", "test-command"])
def test_commands_are_one_line_each(name):
    (command,) = re.findall(rf"^<!-- {name} -->\n```sh\n(.*)\n```$", README, flags=re.MULTILINE)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e ")


@pytest.mark.parametrize("command", ["run", "replay", "zoo"])
def test_the_options_that_a_command_takes(command, capsys):
    told = re.search(rf"`{command}`\s+takes\s+((?:`--[\w-]+`(?:,|\s+and|)\s*)+)", README)[1]
    main([command, "--help"])
    taken = re.findall(r"^ +(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert set(re.findall(r"--[\w-]+", told)) == set(taken) & {
        "--engine",
        "--world-size",
        "--policy",
        "--seed",
        "--transport",
        "--timeout",
    }
