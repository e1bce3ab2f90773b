"""Every entry of the zoo is found for what it is, on both engines; its twin is clean; and each file reads well."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim import Code, Verdict
from ddpsim.scenarios import registry, replay_scenario, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import (
    Scenario,
    lines_used_by,
    location_of_first_finding,
    marked_lines_of_file,
    outcome_text,
)
from ddpsim.simulator.backend_semantics import GLOO

ENTRIES = [
    scenario for scenario in registry.values() if scenario.program.__module__.startswith("ddpsim.scenarios.zoo.")
]
BUGS = [scenario for scenario in ENTRIES if not scenario.repairs and not scenario.expected.is_clean]
NIGHTLY = pytest.mark.tier("nightly")


def source_of(scenario: Scenario) -> str:
    """Its function, with what that uses of its file."""
    text = inspect.getsource(inspect.getmodule(scenario.program))
    statements = ast.parse(text).body
    own = [each for each in statements if getattr(each, "name", "") == scenario.program.__name__]
    used = lines_used_by(own, statements)
    return "\n".join(line for number, line in enumerate(text.splitlines(), 1) if number in used)


def has_no_wrapper(scenario: Scenario) -> bool:
    """Whether both engines are the same to it, as it makes none."""
    return "DistributedDataParallel" not in source_of(scenario)


def on_engines(in_the_night: Callable[[Scenario, Engine], bool]) -> list[Any]:
    """Each scenario on each engine, with the marks of a sweep."""
    return [
        pytest.param(
            scenario,
            engine,
            id=f"{scenario.name}-{engine.value}",
            marks=(NIGHTLY,) if in_the_night(scenario, engine) else (),
        )
        for scenario in ENTRIES
        for engine in Engine
    ]


BOTH = on_engines(lambda scenario, engine: engine is Engine.TORCH and has_no_wrapper(scenario))
BY_DAY = on_engines(
    lambda scenario, engine: bool(scenario.repairs) if engine is Engine.DDP else has_no_wrapper(scenario)
)
"""The repaired twins on our engine run by day in another order and world alone."""
OURS = on_engines(lambda scenario, engine: engine is Engine.TORCH)
EXPECTED = [(bug, engine, bug.expected_by(engine)) for bug in BUGS for engine in Engine]
SEVERAL_MARKS = [(bug, engine) for bug, engine, expected in EXPECTED if len(expected.lines) > 1]
FILES = sorted({Path(inspect.getsourcefile(scenario.program)) for scenario in ENTRIES})

WORLD_SIZES = (2, 3, 5, 7, 8)
"""Beside each scenario's own, as far as it allows them; odd ones too, where shares do not come out even."""

LONGEST_FILE = 250
LONGEST_BUG = 60
MOST_SHOWN = 10


def test_the_zoo_is_whole():
    assert not registry.problems_of_files
    assert len(BUGS) >= 55


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "engine"), BY_DAY)
def test_it_is_found_as_expected_told_well_and_said_again_by_a_replay(scenario, engine):
    result = run_scenario(scenario, engine)
    assert scenario.expected_by(engine).is_met_by(result), str(result)
    _blames_nobody_else_for_what_follows(result)
    _says_a_cause_and_what_to_try(result)
    if (expected := scenario.expected_by(engine)).shows is None and str(expected.code).startswith("mismatch."):
        _names_first_the_line_of_a_culprit(result)
    if result.findings:  # the clean ones are replayed at night
        _is_said_again(scenario, engine, result)


def _is_said_again(scenario, engine, result):
    again = replay_scenario(scenario, result.schedule, engine)
    assert again.trace.digest() == result.trace.digest()
    assert str(again) == str(result)


def _blames_nobody_else_for_what_follows(result):
    if result.verdict is Verdict.FAIL:
        leading, *others = result.findings
        raised = set(result.errors)
        for other in others:
            is_consequence = other.code in (Code.DEADLOCK_DEAD_RANK, Code.RANK_ERROR) and set(other.ranks) <= raised
            assert is_consequence or set(other.ranks) <= set(leading.ranks), str(result)


def _says_a_cause_and_what_to_try(result):
    for finding in result.findings:
        labels = [line.split()[0] for line in finding.body.splitlines()[-2:]]
        assert labels == ["cause", "try"], str(finding)


def _names_first_the_line_of_a_culprit(result):
    leading, *_ = result.findings
    first, culprit = leading.sites[0], leading.ranks[0]
    row = next(line for line in leading.body.splitlines() if line.split()[:2] == ["rank", str(culprit)])
    assert f"{Path(first.path).name}:{first.line}" in row


@pytest.mark.parametrize(("scenario", "engine"), OURS)
def test_so_it_is_in_another_order_and_world(scenario, engine):
    """One of the orders and sizes below; that of 3 ranks, or the nearest, as shares do not come out even there."""
    size = min(other_world_sizes(scenario) or [scenario.world_size], key=lambda size: abs(size - 3))
    result = run_scenario(scenario, engine, world_size=size, policy="random", seed=0)
    assert scenario.expected_by(engine).is_met_by(result), str(result)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(("scenario", "engine"), BOTH)
def test_so_it_is_under_random_schedules(scenario, engine):
    expected = scenario.expected_by(engine)
    results = [run_scenario(scenario, engine, policy="random", seed=seed) for seed in range(MOST_SHOWN)]
    for result in results:
        assert expected.is_met_by(result), str(result)
    _is_said_again(scenario, engine, results[0])
    shown = sum(outcome_text(result) == expected.text(result.world_size) for result in results)
    assert shown == (MOST_SHOWN if expected.shows is None else expected.shows)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(("scenario", "engine"), BOTH)
def test_so_it_is_at_other_world_sizes(scenario, engine):
    for world_size in other_world_sizes(scenario):
        result = run_scenario(scenario, engine, world_size=world_size)
        assert scenario.expected_by(engine).is_met_by(result), str(result)


def other_world_sizes(scenario):
    least, most = scenario.min_world_size, scenario.max_world_size or max(WORLD_SIZES)
    return [size for size in sorted({least, *WORLD_SIZES, most} - {scenario.world_size}) if least <= size <= most]


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(("bug", "engine"), SEVERAL_MARKS, ids=lambda each: each.name.lower())
def test_each_marked_line_is_named_first_in_some_run(bug, engine):
    runs = [{"world_size": size} for size in (bug.world_size, *other_world_sizes(bug))]
    for size in (bug.min_world_size, bug.world_size):
        runs += [{"world_size": size, "policy": "random", "seed": seed} for seed in range(MOST_SHOWN)]
    named = {location_of_first_finding(run_scenario(bug, engine, **run)) for run in runs}
    expected = bug.expected_by(engine)
    assert {f"{expected.file}:{line}" for line in expected.lines} <= named


def test_a_wrong_line_or_rank_or_code_is_a_surprise():
    bug = registry["uneven-inputs-without-join"]
    result = run_scenario(bug)
    assert bug.expected.is_met_by(result)
    for wrong in ({"lines": (1,)}, {"ranks": (0,)}, {"code": Code.DEADLOCK_DEAD_RANK}):
        assert not dataclasses.replace(bug.expected, **wrong).is_met_by(result)


BY_OTHER_RULES = [bug for bug in BUGS if bug.backend_semantics != GLOO.name]


@pytest.mark.parametrize("bug", BY_OTHER_RULES, ids=lambda bug: bug.name)
def test_what_hangs_by_the_rules_of_another_backend_passes_by_those_of_gloo(bug):
    assert run_scenario(bug).verdict is Verdict.FAIL
    assert run_scenario(dataclasses.replace(bug, backend_semantics=GLOO.name)).verdict is Verdict.PASS


def test_each_rule_of_another_backend_has_an_entry():
    assert {bug.backend_semantics for bug in BY_OTHER_RULES} == {"nccl", "in-order", "lazy-connect"}


def test_without_poison_the_later_call_hides_that_nobody_waited():
    bug = registry["async-result-hidden-by-a-later-call"]
    result = run_scenario(dataclasses.replace(bug, poison=False))
    assert (result.verdict, result.returns) == (Verdict.PASS, (1.5,) * 4)  # (0 + 1 + 2 + 3) / 4


# --- how it reads -----------------------------------------------------------------------------------------------------


def test_a_file_is_short_and_names_its_theme():
    for path in FILES:
        lines = path.read_text().splitlines()
        assert len(lines) <= LONGEST_FILE, path
        assert lines[0].startswith('"""'), path
        assert lines[0].endswith('."""'), path


def test_a_bug_is_short_named_like_its_function_and_says_first_what_goes_wrong():
    for scenario in ENTRIES:
        lines = source_of(scenario).splitlines()  # of a twin: with those of its bug, which it names
        assert sum(bool(line.strip()) for line in lines) <= LONGEST_BUG, scenario.name
        assert scenario.program.__name__.replace("_", "-") == scenario.name
        assert scenario.summary.endswith("."), scenario.name
        assert scenario.about.count("\n\n") <= 1, scenario.name


def test_a_bug_has_lines_a_cause_tags_and_a_repaired_twin():
    for bug in BUGS:
        twin = registry[f"{bug.name}-repaired"]
        assert isinstance(twin, Scenario)
        assert twin.expected.is_clean
        assert all((bug.summary, bug.cause, bug.tags, bug.program.__doc__, twin.summary)), bug.name
        if bug.expected.verdict is not Verdict.UNKNOWN:  # which speaks of no line
            assert all(bug.expected_by(each).is_clean or bug.expected_by(each).lines for each in Engine), bug.name


def test_lines_are_marked_for_one_engine_or_both(tmp_path):
    path = tmp_path / "marked.py"
    path.write_text("a\nb  # found here\nc  # found here by torch\nd  # found here by ddp\ne  # found hereby\n")
    assert marked_lines_of_file(path, Engine.TORCH) == (2, 3)
    assert marked_lines_of_file(path, Engine.DDP) == (2, 4)
