"""`RunOptions` is the only list of the options of a run: signatures, console, marker and files are held to it."""

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.main

from ddpsim import Crash, UsageError, explore, replay, shrink, simulate
from ddpsim.scenarios.cli.commands import app
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.files.toml_forms import OPTION_KEYS
from ddpsim.scenarios.pytest_plugin.marker import DESCRIPTION, OF_RUN
from ddpsim.scenarios.running.run_as import command_line_options_of, run_keywords, with_run_options
from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, ReplayKeywords, RunKeywords, RunOptions

ROOT = Path(__file__).resolve().parents[2]
HINTS = get_type_hints(RunOptions)
SAMPLES = {bool: True, int: 3, int | None: 3, tuple[str, ...]: ("json",), bool | None: True}
COMMANDS = typer.main.get_command(app).commands
OF_CONSOLE = [name for name, option in OPTIONS.items() if option.help]


def sample(name):
    """A value that is not the default."""
    choices = [each for each in OPTIONS[name].choices if each != DEFAULTS[name]]
    return choices[0] if choices else (Crash(1, 3),) if name == "faults" else SAMPLES[HINTS[name]]


def mentions(path, pattern):
    return re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_keywords_are_the_fields():
    assert set(OPTIONS) == set(RunKeywords.__annotations__), "simulator/run_options.py: RunKeywords"
    assert set(OPTIONS) - set(ReplayKeywords.__annotations__) == {"alike"}
    assert {each.name for each in fields(RunOptions)} == set(OPTIONS) - {"transport"}, "a field without an OptionForms"
    hints = get_type_hints(RunKeywords)
    others = [name for name, hint in HINTS.items() if "tuple" not in str(hint) and hints[name] != hint]
    assert not others, f"RunKeywords has another type for {others[0]} than RunOptions"


def test_each_option_is_used_and_documented():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "simulator").glob("*.py"))
    for name, option in OPTIONS.items():
        used = rf"plan\.{name}\b|options\.get\(\"{name}\"|BACKENDS\[self\.{name}\]"
        assert re.search(used, sources), f"nothing directly under simulator/ reads plan.{name}"
        assert f"`{name}`" in simulate.__doc__, f"the docstring of simulate has no `{name}`"
        if option.is_in_toml:
            assert mentions("docs/scenarios.md", rf"`{name}`|^{name} ="), f"docs/scenarios.md has no `{name}`"
        if option.is_in_marker:
            assert mentions("docs/pytest.md", rf"^\| `{name}`"), f"the table of docs/pytest.md has no `{name}`"
    assert set(OF_RUN) < set(re.findall(r"\w+", DESCRIPTION))


@pytest.mark.parametrize("command", ["run", "explore", "fuzz", "replay", "debug", "shrink"])
def test_each_command_of_programs_has_the_options_of_a_run(command):
    taken = {each.name: each for each in COMMANDS[command].params}
    for name in OF_CONSOLE:
        option = OPTIONS[name]
        assert (name in taken) == (command not in option.not_of), f"ddpsim {command} and {option.console_flag(name)}"
        assert name not in taken or option.help.rstrip(".") in taken[name].help


def test_an_option_is_the_same_in_a_replay_line_and_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def program(rank):\n    pass\n", encoding="utf-8")
    own = load("own.py:program")
    for name in OF_CONSOLE:
        value = sample(name)
        changed = replace(own, **{name: value}, added_faults=value if name == "faults" else ())
        if OPTIONS[name].is_replayed:
            words = shlex.split(" ".join(command_line_options_of(changed)))
            context = COMMANDS["replay"].make_context("replay", [*words, "own.py:program"])
            given = {key: context.params[key] for key in OF_CONSOLE if context.params.get(key)}
            assert with_run_options(own, given) == changed, f"the replay line has {words} for {name}={value!r}"
        if name in OPTION_KEYS or name == "faults":
            Path("saved.toml").write_text(scenario_as_toml(replace(changed, name="own.py:program"), summary="s"))
            found = load("saved.toml")
            assert getattr(found, name) == value, f"a saved file has {name}={getattr(found, name)!r}"
        keywords = run_keywords(changed, "memory")
        assert keywords.get(name, value) == value


def test_an_option_that_there_is_not_is_one_line():
    known = ", ".join(OPTIONS)
    for call in (simulate, explore):
        with pytest.raises(UsageError) as raised:
            call(print, 2, isolaton="thread")
        line = f"'isolaton' is not an option of a run, expected one of {known}: did you mean 'isolation'?"
        assert str(raised.value) == line
    for call in (replay, shrink):
        with pytest.raises(UsageError, match=r"^alike is True, but a recorded schedule .*: leave it out$"):
            call(print, 2, "s1:0:00000000", alike=True)
