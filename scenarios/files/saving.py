"""Scenarios as TOML files, which `toml_file` reads back: what fuzzing found, and what shrinking made of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import tomlkit
import torch

from ddpsim import Crash, Delay, EarlyReturn, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.toml_file import VERSION
from ddpsim.scenarios.files.value_scenarios import expectation_of, program_in, training_in
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.training.training import Exceptional, JoinTerms, NetworkChoice, OptimizerChoice, Rule, Training
from ddpsim.simulator.choices import answers_text
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.programs.json_form import to_json
from ddpsim.simulator.programs.program import Program

Values = dict[str, Any]


def save(scenario: Scenario, path: Path, *, summary: str = "", cause: str = "") -> None:
    """Write a scenario into a file, over whatever is there. Raises UsageError if that cannot be."""
    text = text_of(scenario, summary=summary, cause=cause)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name a file that can be") from None


def text_of(scenario: Scenario, *, summary: str = "", cause: str = "") -> str:
    """The text of a file that is read as this scenario; of one that is a function, as the one of that name.

    `summary` and `cause` are what the file tells, the scenario's own unless given. What is expected of a function is
    not written: the scenario of that name knows.
    """
    values: Values = {"ddpsim": VERSION, "summary": summary or scenario.summary or "a saved scenario"}
    values |= _unless_empty("cause", cause or scenario.cause)
    values["world_size"] = scenario.world_size
    values |= _unless_empty("runs_on", "" if scenario.engine is Engine.TORCH else scenario.engine.value)
    values |= _unless_empty("schedule", answers_text(scenario.answers) if scenario.answers else "")
    values |= _unless_empty("tags", list(scenario.tags)) | _unless_empty("reports", list(scenario.reports))
    return tomlkit.dumps(values | _body(scenario))


def _body(scenario: Scenario) -> Values:
    """What it runs, and what is expected of that."""
    training, program = training_in(scenario), program_in(scenario)
    if training is not None:
        values = _training(_within_reach(training, scenario.world_size))
        values |= _unless_empty("fault", [_fault(each) for each in scenario.faults])
        return values | _unless_empty("expect", _expect(scenario) | ({"oracle": True} if scenario.reference else {}))
    if program is None:
        return {"scenario": scenario.name}
    is_as_found = scenario.expected == expectation_of(program) and scenario.expected_under_ddp is None
    return _program(program) | ({} if is_as_found else {"expect": _expect(scenario)})


def _unless_empty(key: str, value: Any) -> Values:
    return {key: value} if value else {}


def _changed(value: Any, default: Any) -> Values:
    """The fields of a dataclass that are not those of `default`."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: _plain(own) for name, own in fields.items() if own != getattr(default, name)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


# --- a declared training ----------------------------------------------------------------------------------------------


def _training(training: Training) -> Values:
    networks = [{"name": each.name, **_options(each)} for each in training.networks]
    values: Values = {
        "network": networks[0] if len(networks) == 1 else networks,
        "iterations": _iterations(training.iterations),
        "rows": _plain(training.rows),
    }
    values |= _unless_empty("seed", training.seed)
    values |= {} if training.dtype is torch.float32 else {"dtype": str(training.dtype).removeprefix("torch.")}
    values |= {} if training.join is None else {"join": _changed(training.join, JoinTerms()) or True}
    values |= _optimizer(training.optimizer)
    hook = training.communication_hook
    values |= {} if hook is None else {"communication_hook": hook.value}
    values |= _unless_empty("average_buffers", training.averages_buffers)
    values |= _unless_empty("reduce_loss", training.reduces_loss)
    values |= _unless_empty("engine", dict(training.engine_options))
    return values | _unless_empty("exception", [_changed(each, Exceptional()) for each in training.exceptions])


def _within_reach(training: Training, world_size: int) -> Training:
    """Without exceptions for iterations that none of their ranks comes to, which no file may have."""
    kept = []
    for each in training.exceptions:
        counts = [training.count(rank) for rank in range(world_size) if each.ranks is None or rank in each.ranks]
        iterations = each.iterations and tuple(i for i in each.iterations if i < max(counts, default=0))
        if iterations != ():
            kept.append(dataclasses.replace(each, iterations=iterations))
    return dataclasses.replace(training, exceptions=tuple(kept))


def _options(choice: NetworkChoice) -> Mapping[str, Any]:
    return {option: _plain(value) for option, value in choice.options.items()}


def _iterations(iterations: tuple[int, ...] | Rule) -> Any:
    if isinstance(iterations, tuple):
        return list(iterations)
    return iterations.start if iterations == Rule(iterations.start) else _changed(iterations, Rule(start=-1))


def _optimizer(choice: OptimizerChoice) -> Values:
    changed = _changed(choice, OptimizerChoice())
    if "is_sharded" in changed:
        changed["sharded"] = changed.pop("is_sharded")
    return _unless_empty("optimizer", changed)


_FAULTS = {Crash: "crash", Delay: "delay", EarlyReturn: "early_return"}


def _fault(fault: Fault) -> Values:
    return {"kind": _FAULTS[type(fault)], **dataclasses.asdict(fault)}


# --- the steps of every rank ------------------------------------------------------------------------------------------


def _program(program: Program) -> Values:
    """One step a line."""
    value = json.loads(to_json(program))
    return _unless_empty("group", value["groups"]) | {"rank": [{"steps": _lines(steps)} for steps in value["ranks"]]}


def _lines(steps: list[Any]) -> Any:
    lines = tomlkit.array().multiline(bool(steps))
    lines.extend([_inline(step) for step in steps])
    return lines


def _inline(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table


# --- what is expected -------------------------------------------------------------------------------------------------


def _expect(scenario: Scenario) -> Values:
    under_ddp = scenario.expected_under_ddp
    own = {} if under_ddp is None else {"ddp": _expectation(under_ddp, scenario.world_size)}
    return _expectation(scenario.expected, scenario.world_size) | own


def _expectation(expected: Expectation, world_size: int) -> Values:
    """No finding at all needs no word."""
    if expected.code is not None:
        ranks = expected.ranks(world_size) if callable(expected.ranks) else expected.ranks
        return {"finding": expected.code.value, "ranks": list(ranks)}
    return {} if expected.is_clean else {"verdict": expected.verdict.value}
