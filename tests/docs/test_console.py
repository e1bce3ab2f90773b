"""docs/console.md has every command with all that it takes, and no page names an option that there is not."""

import re

import pytest

from ddpsim.scenarios.pytest_plugin import pytest_addoption
from tests.compatibility import table as table_of_programs
from tests.docs.blocks import blocks_of, name_of, pages
from tests.docs.option_tables import PAGE, TABLE, brought_up_to_date, commands, table

TEXT = PAGE.read_text(encoding="utf-8")

OF_OTHERS = {
    *("--bugs", "--fuzz-seconds", "--tier"),
    *("--dist", "--junitxml", "--lf", "--pdb", "--tb", "--trace", "--tx"),
    *("--epochs", "--tp"),
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--local-addr"),
}
"""Of a benchmark and our tests, of pytest, of programs, and of torchrun."""


COMMAND = re.compile(r"`ddpsim\s+([a-z]\w*)")


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))


def options_of_the_plugin():
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    groups = parser.getgroup("ddpsim"), parser.getgroup("ddpsim-suite")
    return {name for group in groups for option in group.options for name in option.names()}


def test_every_command_has_its_section():
    assert re.findall(r"^## (\w+)$", TEXT, re.MULTILINE) == list(commands())
    assert [name for _, name in TABLE.findall(TEXT)] == list(commands())


def test_the_tables_are_those_of_the_commands():
    """If not: python -m tests.docs.option_tables."""
    assert brought_up_to_date(TEXT) == TEXT


def test_every_command_has_an_example_that_runs():
    run = " ".join(block.text for block in blocks_of(PAGE))
    assert [name for name in commands() if f"ddpsim {name} " not in run] == []


TABLE_OF_PROGRAMS = re.compile(f"{re.escape(table_of_programs.BEGIN)}.*{re.escape(table_of_programs.END)}", re.DOTALL)


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_every_option_in_prose_is_one(page):
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):  # these are run
        text = text.replace(block.text, "")
    text = TABLE_OF_PROGRAMS.sub("", text)  # whose options are the programs' own
    known = {option for command in commands().values() for option in options_in(table(command))}
    assert options_in(text) <= known | options_of_the_plugin() | OF_OTHERS | {
        "--help",
        "--version",
        "--install-completion",
    }


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_every_command_in_prose_is_one(page):
    text = page.read_text(encoding="utf-8")
    assert set(COMMAND.findall(text)) <= set(commands())


def test_a_command_in_prose_is_recognised():
    assert COMMAND.findall("`ddpsim rnu FILE.py` and `ddpsim\nlist`, `ddpsim --help`, ddpsim is") == ["rnu", "list"]
    assert {"--ddpsim-policy", "--ddpsim-report"} <= options_of_the_plugin()
