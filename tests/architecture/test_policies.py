"""The catalog of policies is the only list of them: whatever else has to know one is held to it here."""

import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpsim import Budget, ChoiceKind, ChoicePoint, explore, simulate
from ddpsim.scenarios.cli.commands import app
from ddpsim.simulator import policies
from ddpsim.simulator.exploration.strategy import COVERING
from ddpsim.simulator.policies import named

ROOT = Path(__file__).resolve().parents[2]
APART = {"schedule_replay"}
"""Made from answers that somebody recorded, and not by a name."""


def choices(row, seed):
    """What a policy says at a hundred choices among five ranks, each of which goes on if it is left to."""
    policy = row.make_policy(seed)
    at = [ChoicePoint(ChoiceKind.RANK, step, 0) for step in range(100)]
    return [policy.choose(point, (0, 1, 2, 3, 4)) for point in at]


def test_every_class_of_a_policy_has_a_name():
    text = inspect.getsource(named) + inspect.getsource(inspect.getmodule(COVERING["dfs"]))
    modules = {path.stem: path.read_text(encoding="utf-8") for path in Path(policies.__path__[0]).glob("*.py")}
    choosing = {
        name: re.findall(r"^class ([A-Z]\w+)", source, re.MULTILINE)
        for name, source in modules.items()
        if "    def choose(" in source and name not in APART
    }
    lost = [name for name, classes in choosing.items() if not any(each in text for each in classes)]
    assert not lost, f"simulator/policies/named.py has no row for simulator/policies/{lost[0]}.py"


def test_every_policy_that_runs_has_a_test_of_its_own():
    """No other test notices what it chooses: of the file that its class is in, or by its name."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "policies").glob("test_*.py"))
    lacking = [name for name in named.RUNNING if type(named.POLICIES[name].make_policy(0)).__name__ not in tests]
    assert not lacking, f"tests/policies/ has no test of {lacking[0]}"


def test_what_covers_all_has_a_strategy():
    assert set(COVERING) == set(named.COVERING), "simulator/exploration/strategy.py:COVERING"


@pytest.mark.parametrize("name", named.POLICIES)
def test_a_row_says_whether_the_seed_matters(name):
    row = named.POLICIES[name]
    assert row.make is not None or row.explores, f"{name} neither runs nor explores"
    if row.make is None:
        assert not row.draws, f"{name} draws, and cannot be made from a seed"
        return
    differs = len({tuple(choices(row, seed)) for seed in range(8)}) > 1
    assert differs == row.draws, f"simulator/policies/named.py says draws={row.draws} of {name}"


@pytest.mark.parametrize("name", named.RUNNING)
def test_a_policy_runs_by_its_name(name):
    simulate(lambda rank: None, 2, policy=name, seed=3).raise_for_verdict()


@pytest.mark.parametrize("name", named.EXPLORING)
def test_a_policy_explores_by_its_name(name):
    exploration = explore(lambda rank: None, 2, policy=name, seed=3, budget=Budget(executions=9))
    assert exploration.complete == (name in named.COVERING)


def test_the_option_of_a_policy_is_a_keyword_of_explore_and_of_the_console():
    keywords = inspect.signature(explore).parameters
    options = [row.option.name for row in named.POLICIES.values() if row.option is not None]
    assert not [name for name in options if name not in keywords], "simulator/api.py:explore"
    shown = CliRunner().invoke(app, ["explore", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert not [name for name in options if f"--{name}" not in shown], "scenarios/cli/explore.py"


def test_pages_and_the_docstring_of_explore_name_every_policy():
    exploring, marker = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("exploring.md", "pytest.md"))
    shown = sorted(re.findall(r"^\| `(\w+)` \|", exploring, re.MULTILINE))
    assert shown == sorted(named.EXPLORING), "docs/exploring.md"
    names = {*named.RUNNING, *named.COVERING}
    assert not [name for name in sorted(names) if f'`"{name}"`' not in marker], "docs/pytest.md"
    assert not [name for name in named.EXPLORING if f'"{name}"' not in explore.__doc__], "simulator/api.py:explore"
