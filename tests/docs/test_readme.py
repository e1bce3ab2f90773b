"""The README has the two commands that CI runs."""

import re

import pytest

from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run-command", "test-command"])
def test_commands_are_one_line_each(name):
    (command,) = re.findall(rf"^<!-- {name} -->\n```sh\n(.*)\n```$", README, flags=re.MULTILINE)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e ")
