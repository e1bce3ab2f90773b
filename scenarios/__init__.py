"""Scenarios: programs of several ranks, each with what is expected of it; and the command line that runs them.

`registry` maps names to scenarios, `load` finds one by name (or in a file of yours), and `run_scenario` simulates it.
`@scenario` makes one of a function, and `@repairs` its repaired twin. `per_rank` makes fixtures for pytest.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from scenarios.loader import load
    from scenarios.model import CLEAN, Expectation, Scenario, finds, repairs, scenario
    from scenarios.pytest_plugin.fixtures import per_rank
    from scenarios.registered import registry
    from scenarios.runner import replay_scenario, run_scenario
    from scenarios.shrinking.shrinker import ShrunkScenario, shrink_scenario

_HOMES = {
    "CLEAN": "scenarios.model",
    "Expectation": "scenarios.model",
    "Scenario": "scenarios.model",
    "ShrunkScenario": "scenarios.shrinking.shrinker",
    "finds": "scenarios.model",
    "load": "scenarios.loader",
    "per_rank": "scenarios.pytest_plugin.fixtures",
    "registry": "scenarios.registered",
    "repairs": "scenarios.model",
    "replay_scenario": "scenarios.runner",
    "run_scenario": "scenarios.runner",
    "scenario": "scenarios.model",
    "shrink_scenario": "scenarios.shrinking.shrinker",
}

__all__ = [
    "CLEAN",
    "Expectation",
    "Scenario",
    "ShrunkScenario",
    "finds",
    "load",
    "per_rank",
    "registry",
    "repairs",
    "replay_scenario",
    "run_scenario",
    "scenario",
    "shrink_scenario",
]


def __getattr__(name: str) -> object:
    # Scenarios need torch, which takes a second to import; the command line lies in this package too, and answers
    # `--help` or a mistyped option without it. So a public name is imported when it is first asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
