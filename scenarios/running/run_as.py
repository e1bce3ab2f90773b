"""The options of a run in a scenario: set by the console, passed to `simulate`, written in a replay line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from ddpsim import UsageError
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.fault_text import fault_of, text_of
from ddpsim.simulator.run_options import NOTHING, OPTIONS, ReplayKeywords

_DEFAULTS = {each.name: each.default for each in fields(Scenario)}


def with_options(scenario: Scenario, given: Mapping[str, Any]) -> Scenario:
    """Return the scenario with the options that the console was given, by name. Other options stay as they are.

    Raises UsageError for an unknown check or fault.
    """
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    # A replay line repeats the faults that a file adds.
    added = tuple(each for each in map(fault_of, values.pop("faults", ())) if each not in scenario.added_faults)
    for name in [name for name in values if OPTIONS[name].has_none]:
        texts = (*OPTIONS[name].choices, NOTHING)
        if values[name] not in texts:
            raise UsageError(f"{name} is {values[name]!r}, expected one of {', '.join(texts)}: give one of these names")
        values[name] = None if values[name] == NOTHING else values[name]
    values |= {"faults": (*scenario.faults, *added), "added_faults": (*scenario.added_faults, *added)}
    return replace(scenario, **values)


def run_keywords(scenario: Scenario, transport: str) -> ReplayKeywords:
    """Return the options with which `simulate`, `replay` and `explore` run a scenario."""
    own = {name: getattr(scenario, name) for name in ReplayKeywords.__optional_keys__ if name != "transport"}
    return cast(ReplayKeywords, {**own, "transport": transport})


def words_of(scenario: Scenario) -> list[str]:
    """Return the command-line options that a scenario needs to run in the same way, if no file has them."""
    words: list[str] = []
    for name, option in OPTIONS.items():
        value = getattr(scenario, "added_faults" if name == "faults" else name, None)
        if not option.help or not option.is_replayed or value == _DEFAULTS[name]:
            continue
        flag = option.flag_of(name)
        for each in value if isinstance(value, tuple) else (value,):
            text = NOTHING if each is None else text_of(each) if name == "faults" else str(each)
            words += [flag] if each is True else [flag, shlex.quote(text)]
    return words
