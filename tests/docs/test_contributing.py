"""CONTRIBUTING.md says of the words and of the zoo what holds, and the README has the two commands that CI runs."""

import re

from tests.docs.blocks import ROOT
from tests.zoo.test_zoo import LONGEST_BUG, LONGEST_FILE

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_words_are_explained_in_the_semantics():
    semantics = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    words = re.search(r"each in one spelling: ([\w,\s]+)\n\(", TEXT)[1].split(", ")
    assert len(words) == 8
    assert set(words) <= set(re.findall(r"\*(\w+)\*", semantics))


def test_how_long_a_scenario_may_be():
    assert f"{LONGEST_BUG} lines at most, not counting empty" in TEXT
    assert f"each file of {LONGEST_FILE} lines at" in TEXT


def test_the_commands_of_the_readme_are_one_line_each():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("run-command", "test-command"):
        (command,) = re.findall(rf"^<!-- {name} -->\n```sh\n(.*)\n```$", readme, flags=re.MULTILINE)
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e ")
