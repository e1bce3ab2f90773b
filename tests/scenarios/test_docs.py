"""What docs/scenarios.md shows runs, and it names every key, action, network and option there is."""

import re
from pathlib import Path

import pytest

from scenarios import finds, load, registry, run_scenario, toml_file
from scenarios.cli import main
from scenarios.models import NETWORKS
from scenarios.training import Action, CommunicationHook, OptimizerName
from simulator import Code, UsageError

TEXT = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()


def block(language, *, only=1, of=1):
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert len(found) == of
    return found[only - 1]


def known_keys(tmp_path, text):
    """The keys that a file may have, from what it says to one that it may not."""
    path = tmp_path / "unknown.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(str(path))
    return re.search(r"expected one of ([\w, ]+)", str(caught.value))[1].split(", ")


def test_the_python_example(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(block("python"))
    bug, twin = load(f"{path}:one_batch_less"), load(f"{path}:repaired")
    for engine in ("torch", "ddp"):
        assert bug.expected.is_met_by(run_scenario(bug, engine))
        assert twin.expected.is_met_by(run_scenario(twin, engine))
    assert bug.expected.lines


def test_the_toml_example(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(block("toml", only=1, of=2))
    for engine in ("torch", "ddp"):
        assert run_scenario(str(path), engine).findings == ()


def test_the_example_of_steps(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(block("toml", only=2, of=2))
    bug = load(str(path))
    assert bug.expected == finds(Code.DEADLOCK_MISSING_RANK, 0)
    assert bug.expected.is_met_by(run_scenario(bug))


def test_the_example_in_the_reader(tmp_path):
    (tmp_path / "own.toml").write_text("".join(re.findall(r"^    (?:.*\n)|^\n", toml_file.__doc__, re.MULTILINE)))
    for engine in ("torch", "ddp"):
        assert run_scenario(str(tmp_path / "own.toml"), engine).findings == ()


def test_the_lines_about_join():
    assert [line for line in str(run_scenario("uneven-linear")).splitlines() if line.startswith("  join ")] == [
        line for line in TEXT.splitlines() if line.startswith("  join ")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "unknown = 1",
        'summary = "x"\noptimizer = { unknown = 1 }',
        'summary = "x"\njoin = { unknown = 1 }',
        'summary = "x"\niterations = { unknown = 1 }',
        'summary = "x"\n[[exception]]\nunknown = 1',
        'summary = "x"\n[[fault]]\nkind = "delay"\nunknown = 1',
        'summary = "x"\n[[fault]]\nkind = "crash"\nunknown = 1',
        'summary = "x"\n[expect]\nunknown = 1',
    ],
)
def test_every_key_is_in_the_text(tmp_path, text):
    for key in known_keys(tmp_path, ('summary = "x"\n' + text) if text == "unknown = 1" else text):
        assert re.search(rf"\b{key}\b", TEXT), key


@pytest.mark.parametrize("kind", [Action, CommunicationHook, OptimizerName])
def test_every_choice_is_in_the_text(kind):
    for member in kind:
        assert f"`{member.value}`" in TEXT


def test_every_network_is_in_the_text():
    for name in NETWORKS:
        assert re.search(rf"\b{name}\b", TEXT), name


def test_the_commands_name_what_there_is():
    for name in re.findall(r"^ddpsim run ([\w-]+)(?: |$)", TEXT, re.MULTILINE):
        assert name in registry


@pytest.mark.parametrize("command", ["run", "replay", "zoo"])
def test_the_readme_names_the_options_that_a_command_takes(command, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    told = re.search(rf"`{command}`\s+takes\s+((?:`--[\w-]+`(?:,|\s+and|)\s*)+)", readme)[1]
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
