"""What the marker cannot work with: one failing test with one line, and the others run."""

import re
from pathlib import Path

import pytest
import torch

from ddpsim import Budget
from ddpsim.scenarios.pytest_plugin import marker
from ddpsim.simulator.policies.named import DRAWING, EXPLORING, RUNNING, join_names
from tests.pytest_plugin.reading import marked, report_of

GOOD = marked("dist.barrier()", name="test_good")
LINES = {
    "ranks()": "no world size is given, expected a whole number: write ranks(4) for instance",
    "ranks(0)": "world size is 0, expected a whole number from 1: the number of ranks",
    "ranks(-2)": "world size is -2, expected a whole number from 1: the number of ranks",
    "ranks('4')": "world size is '4', expected a whole number from 1: the number of ranks",
    "ranks(True)": "world size is True, expected a whole number from 1: the number of ranks",
    "ranks(4.0)": "world size is 4.0, expected a whole number from 1: the number of ranks",
    "ranks(2, 'random')": "2 positional arguments are given, expected only the world size: name the others",
    "ranks(2, sed=3)": f"unknown option 'sed', expected one of {', '.join(marker.NAMES)}: did you mean 'seed'?",
    "ranks(2, colour=3)": f"unknown option 'colour', expected one of {', '.join(marker.NAMES)}: leave it out",
    "ranks(2, seed='3')": "seed is '3', expected a whole number: write seed=1 for instance",
    "ranks(2, seeds=20)": "seeds is 20, expected whole numbers: write seeds=range(20) for instance",
    "ranks(2, seeds=[])": "seeds is empty, expected one or more different whole numbers: "
    "write seeds=range(20) for instance",
    "ranks(2, seeds=[1, 'a'])": "seeds has 'a', expected one or more different whole numbers: "
    "write seeds=range(20) for instance",
    "ranks(2, seeds=[1, 1])": "seeds has a number twice, expected one or more different whole numbers: "
    "write seeds=range(20) for instance",
    "ranks(2, seeds={1, 2})": "seeds is of type set, expected a range, a list or a tuple, whose order is fixed: "
    "write seeds=range(20) for instance",
    "ranks(2, seed=1, seeds=[1])": "seeds and seed are both given, expected at most one: keep one of them",
    "ranks(2, explore=True, seeds=[1])": "explore and seeds are both given, expected at most one: "
    "leave it out, because an exploration chooses its schedules itself",
    "ranks(2, explore=True, policy='pct')": "explore and policy are both given, expected at most one: "
    "leave it out, because an exploration chooses its schedules itself",
    "ranks(2, policy='round_robin', seeds=[1])": "a seed is given, but policy 'round_robin' uses no seed: "
    f"write policy={join_names(map(repr, DRAWING))}",
    "ranks(2, explore=3)": "explore is 3, expected True, the name of a policy, or a dict: "
    "write {'policy': 'dfs', 'preemptions': 2} for instance",
    "ranks(2, explore={'deph': 3})": "explore has 'deph', expected some of policy, depth, preemptions: leave it out",
    "ranks(2, explore='pct')": "explore is 'pct', which draws random schedules and never covers all, expected "
    "'dpor' or 'dfs': for a number of random schedules write policy='pct', seeds=range(20)",
    "ranks(2, expect=3)": "expect is 3, expected a finding code: write 'deadlock.missing_rank' for instance",
    "ranks(2, timeout='x')": "timeout is 'x', expected a number above 0: the time limit of the test",
    "ranks(2, timeout=3, budget={'steps': 9})": "timeout is 3, but a budget is given, too: "
    "write seconds= in the budget",
    "ranks(2, budget=3)": "budget is 3, expected a ddpsim.Budget or a dict: write {'seconds': 10}",
    "ranks(2, budget={'second': 3})": "budget has 'second', expected some of executions, seconds, steps, polls, "
    "stuck_seconds: leave it out",
    "ranks(2, budget={'seconds': 'x'})": "budget has seconds='x', expected a number above 0: "
    "the time limit of the test",
    "ranks(2, budget={'seconds': -1})": "budget has seconds=-1, expected a number above 0: the time limit of the test",
    "ranks(2, budget={'seconds': float('nan')})": "budget has seconds=nan, expected a number above 0: "
    "the time limit of the test",
    "ranks(2, budget={'steps': True})": "budget has steps=True, expected a number above 0: "
    "the most choice points of a run",
    "ranks(2, budget={'executions': None})": "budget has executions=None, expected a number above 0: "
    "the most runs of an exploration",
    "ranks(2, expect='deadlock.mising_rank')": "expect is 'deadlock.mising_rank', expected a finding code: "
    "did you mean 'deadlock.missing_rank'?",
}
"""What the plugin says itself, by marker."""
LINES_OF_THE_SIMULATOR = {
    "ranks(99999)": "world_size is 99999, expected a whole number from 1 to 16384: correct it",
    "ranks(2, policy='robin')": f"policy is 'robin', expected one of {', '.join(RUNNING)}: give one of these names",
    "ranks(2, explore='dfz')": f"policy is 'dfz', expected one of {', '.join(EXPLORING)}: give one of these names",
    "ranks(2, explore={'policy': 'dpor', 'depth': 2})": "depth is 2, which only policy 'pct' has, not 'dpor': "
    "leave it out",
    "ranks(2, transport='nccl')": "transport is 'nccl', expected 'memory' or 'gloo': give one of these",
    "ranks(2, check='all')": "check is 'all', expected one of replicas, replicas-if-any, reference: give one of these",
    "ranks(2, faults=[3])": "faults has 3, expected Crash, Delay or EarlyReturn values: give only these",
}
"""What the simulator says of what the plugin hands on."""


def test_an_option_that_cannot_be_worked_with_is_one_line(run):
    lines = {mark: f"@pytest.mark.ranks: {line}" for mark, line in LINES.items()} | LINES_OF_THE_SIMULATOR
    names = {mark: f"test_{number}" for number, mark in enumerate(lines)}
    result = run("".join(marked("dist.barrier()", mark, name=names[mark]) for mark in lines) + GOOD)
    result.assert_outcomes(failed=len(lines), passed=1)
    assert {mark: report_of(result, names[mark]) for mark in lines} == {mark: [line] for mark, line in lines.items()}


RANKS = "@pytest.mark.ranks(2)\n"
PARAMETER = '@pytest.mark.parametrize("{name}", [pytest.param(1, marks=pytest.mark.ranks({options}))])\n'
ELSEWHERE = {
    f"{RANKS}class TestIt:\n    def test_a(self):\n        pass\n    def test_b(self):\n        pass\n": (
        "is on class TestIt, expected on a test function: mark each of its methods"
    ),
    f"{RANKS}async def test_it(rank):\n    pass\n": (
        "test_it is async, expected a plain function: call asyncio.run in it"
    ),
    f"{RANKS}async def test_it(rank):\n    yield\n": (
        "test_it is async, expected a plain function: call asyncio.run in it"
    ),
    f"{RANKS}def test_it(rank):\n    yield\n": ("test_it is a generator, expected a plain function: remove its yield"),
    f"{RANKS}@pytest.mark.ranks(3)\ndef test_it(rank):\n    pass\n": (
        "the marker is given 2 times on test_it, expected once: keep one of them"
    ),
    PARAMETER.format(name="n", options="2, seeds=range(3)") + "def test_a(n, rank):\n    pass\n": (
        "seeds= is in pytest.param, expected on the function: write seed= in pytest.param"
    ),
    PARAMETER.format(name="n", options=2) + PARAMETER.format(name="m", options=3) + "def test_a(n, m, rank): pass\n": (
        "the marker is given 2 times in the parameters of test_a[1-1], expected once: keep one of them"
    ),
}


@pytest.mark.parametrize(("source", "line"), ELSEWHERE.items())
def test_what_the_marker_cannot_stand_on_is_one_line(fails, source, line):
    assert fails(source + GOOD, passed=1).lines == [f"@pytest.mark.ranks: {line}"]


def test_a_mark_on_the_module_or_a_base_class_fails_each_test(fails):
    assert fails("pytestmark = pytest.mark.ranks(2)\n\ndef test_a():\n    pass\n").lines == [
        "@pytest.mark.ranks: is on module test_it.py, expected on a test function: mark the functions that need it"
    ]


def test_a_method_of_a_unittest_case_is_one_line(fails):
    failure = fails(
        f"import unittest\nclass TestCase(unittest.TestCase):\n    {RANKS}    def test_a(self): pass\n"
        "    def test_b(self): pass\n",
        passed=1,
    )
    assert failure.lines == [
        "@pytest.mark.ranks: test_a is in a unittest.TestCase, expected a plain class: leave out the base class"
    ]


@pytest.mark.parametrize(
    ("function", "parameter", "line"),
    [
        ("ranks(2, seeds=[1, 2])", "ranks(3, seed=3)", "seeds and seed are both given, expected at most one: *"),
        ("ranks(2, explore=True)", "ranks(3, policy='pct')", "explore and policy are both given, *"),
        ("ranks(2)", "ranks()", "no world size is given, expected a whole number: *"),
        ("ranks()", "ranks(3)", "no world size is given, expected a whole number: *"),
    ],
)
def test_markers_of_function_and_parameter_that_contradict_are_one_line(run, function, parameter, line):
    result = run(f"""
@pytest.mark.{function}
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.{parameter})])
def test_a(n, rank):
    pass
""")

    assert result.parseoutcomes().keys() == {"failed"}
    result.stdout.fnmatch_lines([f"@pytest.mark.ranks: {line}"])


def test_fixtures_of_an_unusable_test_are_not_made(fails):
    loud = "@pytest.fixture\ndef loud():\n    print('MADE')\n"
    fails(loud + marked("pass", "ranks(0)", arguments="loud"), "-s").stdout.no_fnmatch_line("*MADE*")


def test_torch_distributed_in_use_outside_is_one_line(fails, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    (line,) = fails(GOOD).lines
    assert line.startswith("torch.distributed is already initialised in this process")


def test_the_marker_is_registered_and_explained(run):
    run("", "--markers").stdout.fnmatch_lines(["@pytest.mark.ranks(world_size, *, policy, seed,*"])


def test_the_page_names_every_option_and_no_other_and_limits_are_those_of_a_budget():
    assert set(marker._LIMITS) == set(Budget.__slots__)
    page = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(marker.NAMES)
    assert re.findall(r"^\| `(--[\w-]+)", page, re.MULTILINE) == [
        f"--ddpsim-{name}" for name in ("policy", "seed", "replay", "report")
    ]


ROOT = Path(__file__).parents[2]
