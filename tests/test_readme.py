"""What the README shows is what one gets: its script, its Python sessions, its console sessions."""

import doctest
import re
from pathlib import Path

import pytest

from scenarios.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_the_script_is_the_example():
    (script,) = blocks("python")
    assert (ROOT / "examples" / "hang.py").read_text(encoding="utf-8").endswith(f'"""\n\n{script}')


def test_python_sessions():
    session = "\n".join(blocks("pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, "README.md", "README.md", 0)
    problems = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=problems.append)
    assert results.attempted > 10
    assert not problems, "".join(problems)


@pytest.mark.parametrize("block", blocks("console"))
def test_console_session(block, capsys, monkeypatch):
    # If a diagnosis has become better: paste what the command prints now.
    monkeypatch.chdir(ROOT)
    command, shown = block.split("\n", 1)
    main(command.removeprefix("$ ddpsim ").split())
    assert without_times(capsys.readouterr().out) == without_times(shown)


def without_times(text):
    return re.sub(r"\d+ ms$", "... ms", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["run-command", "test-command"])
def test_commands_are_one_line_each(name):
    (command,) = re.findall(rf"^<!-- {name} -->\n```sh\n(.*)\n```$", README, flags=re.MULTILINE)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e ")
