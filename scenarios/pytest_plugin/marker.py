"""The marker `@pytest.mark.ranks(4, ...)`: its options, and the checks that need no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.simulator.policies import named
from ddpsim.simulator.run_options import OPTIONS

MARKER = "ranks"

_EXPLORE = ("policy", *sorted(row.option.name for row in named.POLICIES.values() if row.option is not None))
_LIMITS = {
    "executions": "the most runs of an exploration",
    "seconds": "the time limit of the test",
    "steps": "the most choice points of a run",
    "polls": "the most failed polls in a row",
    "stuck_seconds": "the longest sleep of a rank outside the simulation",
}
"""The limits that a budget can have, each with its meaning for messages."""


SECONDS_INI = "ddpsim_seconds"
"""The ini option of pytest for the time limit of tests whose marker has none."""
SECONDS = "60"
"""The default of this ini option; the simulator's default, ten minutes, is too long for a test."""


class MarkerError(Exception):
    """A marked test or its marker is wrong. The text of the exception is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(f"@pytest.mark.{MARKER}: {text}")


@dataclass(frozen=True, slots=True)
class MarkerOptions:
    """The options of a marker `ranks`."""

    world_size: int
    policy: Any = None
    """The scheduling policy; None for the default: round robin, or random if seeds are given."""
    seed: int | None = None
    seeds: tuple[int, ...] = ()
    explore: Mapping[str, Any] | None = None
    """The options of an exploration; None for a single run."""
    expect: str | None = None
    budget: Any = None
    """A Budget, or a mapping from names of limits to their values."""
    timeout: float | None = None
    """The time limit in seconds; the same as a budget with only `seconds`."""
    of_run: Mapping[str, Any] = field(default_factory=dict)
    """The options of a run, as keywords of `simulate`."""


OF_RUN = tuple(name for name, option in OPTIONS.items() if option.is_in_marker)
"""The names of the options of a run that a marker may have."""

NAMES = (*(each.name for each in fields(MarkerOptions) if each.name not in ("world_size", "of_run")), *OF_RUN)
DESCRIPTION = f"{MARKER}(world_size, *, {', '.join(NAMES)}): run the test on every rank of a simulated world (ddpsim)"


def default_time_limit(config: pytest.Config) -> float:
    """Return the time limit of tests whose marker has none, from the ini option.

    Raises UsageError for an invalid value.
    """
    said = config.getini(SECONDS_INI)
    try:
        seconds = float(said)
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        raise pytest.UsageError(
            f"{SECONDS_INI} is {said!r}, expected a number above 0: the time limit of a marked test"
        )
    return seconds


def options_of_mark(mark: pytest.Mark, *, of_parameter: pytest.Mark | None = None) -> MarkerOptions:
    """Return the options of a marker; options of a parameter's marker override them.

    Raises MarkerError for wrong options.
    """
    values = _values_of_mark(mark)
    if of_parameter is not None:
        values |= _values_of_mark(of_parameter)
    _check_option_combination(values)
    _check_seeds(values)
    expect = values.get("expect")
    if expect is not None and not isinstance(expect, str):
        raise MarkerError(f"expect is {expect!r}, expected a finding code: write 'deadlock.missing_rank' for instance")
    if values.get("timeout") is not None:
        values["budget"] = _budget_of_timeout(values)
    if "budget" in values:
        _check_budget(values["budget"])
    values["explore"] = _exploration_options(values.get("explore"), expect)
    values["seeds"] = tuple(values.get("seeds") or ())
    of_run = {name: values.pop(name) for name in OF_RUN if name in values}
    return MarkerOptions(**values, of_run=of_run)


def _values_of_mark(mark: pytest.Mark) -> dict[str, Any]:
    """Return the options of one marker, with the world size checked."""
    values = dict(mark.kwargs)
    if not mark.args and "world_size" not in values:
        raise MarkerError("no world size is given, expected a whole number: write ranks(4) for instance")
    if len(mark.args) + ("world_size" in values) > 1:
        raise MarkerError(
            f"{len(mark.args)} positional arguments are given, expected only the world size: name the others"
        )
    for name in mark.kwargs:
        if name not in NAMES and name != "world_size":
            remedy = suggest_nearest_name(name, NAMES) or "leave it out"
            raise MarkerError(f"unknown option {name!r}, expected one of {', '.join(NAMES)}: {remedy}")
    if mark.args:
        values["world_size"] = mark.args[0]
    world_size = values["world_size"]
    if not _is_whole_number(world_size) or world_size < 1:
        raise MarkerError(f"world size is {world_size!r}, expected a whole number from 1: the number of ranks")
    return values


def _check_option_combination(values: Mapping[str, Any]) -> None:
    clashes = [("seeds", "seed", "keep one of them")]
    if values.get("explore") not in (None, False):
        why = "leave it out, because an exploration chooses its schedules itself"
        clashes += [("explore", "policy", why), ("explore", "seeds", why)]
    for one, other, remedy in clashes:
        if one in values and other in values:
            raise MarkerError(f"{one} and {other} are both given, expected at most one: {remedy}")
    policy = values.get("policy")
    if policy in named.RUNNING and not named.uses_seed(policy) and ("seed" in values or "seeds" in values):
        drawing = named.join_names(map(repr, named.DRAWING))
        raise MarkerError(f"a seed is given, but policy {policy!r} uses no seed: write policy={drawing}")


def _check_seeds(values: Mapping[str, Any]) -> None:
    if "seed" in values and not _is_whole_number(values["seed"]):
        raise MarkerError(f"seed is {values['seed']!r}, expected a whole number: write seed=1 for instance")
    if "seeds" not in values:
        return
    seeds = values["seeds"]
    if isinstance(seeds, (str, bytes)) or not isinstance(seeds, Iterable):
        raise MarkerError(f"seeds is {seeds!r}, expected whole numbers: write seeds=range(20) for instance")
    if not isinstance(seeds, (range, list, tuple)):
        raise MarkerError(
            f"seeds is of type {type(seeds).__name__}, expected a range, a list or a tuple, whose order is fixed: "
            "write seeds=range(20) for instance"
        )
    wrong = [seed for seed in seeds if not _is_whole_number(seed)]
    if wrong or not seeds or len(set(seeds)) < len(seeds):
        found = f"seeds has {wrong[0]!r}" if wrong else "seeds has a number twice" if seeds else "seeds is empty"
        raise MarkerError(f"{found}, expected one or more different whole numbers: write seeds=range(20) for instance")


def _budget_of_timeout(values: Mapping[str, Any]) -> Mapping[str, float]:
    timeout = values["timeout"]
    if values.get("budget") is not None:
        raise MarkerError(f"timeout is {timeout!r}, but a budget is given, too: write seconds= in the budget")
    if not _is_positive_number(timeout):
        raise MarkerError(f"timeout is {timeout!r}, expected a number above 0: {_LIMITS['seconds']}")
    return {"seconds": timeout}


def _check_budget(budget: object) -> None:
    if isinstance(budget, Mapping):
        unknown = [name for name in budget if name not in _LIMITS]
        if unknown:
            raise MarkerError(f"budget has {unknown[0]!r}, expected some of {', '.join(_LIMITS)}: leave it out")
        for name, value in budget.items():
            if not _is_positive_number(value):
                raise MarkerError(f"budget has {name}={value!r}, expected a number above 0: {_LIMITS[name]}")
    elif not (budget is None or type(budget).__name__ == "Budget"):
        raise MarkerError(f"budget is {budget!r}, expected a ddpsim.Budget or a dict: write {{'seconds': 10}}")


def _exploration_options(explore: object, expect: object) -> Mapping[str, Any] | None:
    """Return the options of an exploration of schedules, with its policy; None if the test runs once."""
    if explore is None or explore is False:
        return None
    chosen = named.DEFAULT_EXPLORING if explore is True else explore
    options = {"policy": chosen} if isinstance(chosen, str) else chosen
    if not isinstance(options, Mapping):
        raise MarkerError(
            f"explore is {explore!r}, expected True, the name of a policy, or a dict: write {{'policy': 'dfs', "
            "'preemptions': 2} for instance"
        )
    unknown = [name for name in options if name not in _EXPLORE]
    if unknown:
        raise MarkerError(f"explore has {unknown[0]!r}, expected some of {', '.join(_EXPLORE)}: leave it out")
    policy = options.get("policy", named.DEFAULT_EXPLORING)
    if named.uses_seed(policy) and expect is None:
        covering = named.join_names(map(repr, named.COVERING))
        raise MarkerError(
            f"explore is {policy!r}, which draws random schedules and never covers all, expected {covering}: "
            f"for a number of random schedules write policy={policy!r}, seeds=range(20)"
        )
    return {"policy": policy, **options}


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
