"""Scenarios: programs of several ranks, each with what is expected of it; and the command line that runs them.

`registry` maps names to scenarios, `load` finds one by name (or makes one of a function in a file of yours), and
`run_scenario` simulates it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from scenarios.loader import load
    from scenarios.model import Expectation, Scenario
    from scenarios.registered import registry
    from scenarios.runner import replay_scenario, run_scenario

__all__ = ["Expectation", "Scenario", "load", "registry", "replay_scenario", "run_scenario"]

_HOMES = {
    "Expectation": "scenarios.model",
    "Scenario": "scenarios.model",
    "load": "scenarios.loader",
    "registry": "scenarios.registered",
    "replay_scenario": "scenarios.runner",
    "run_scenario": "scenarios.runner",
}


def __getattr__(name: str) -> object:
    # Scenarios need torch, which takes a second to import; the command line lies in this package too, and answers
    # `--help` or a mistyped option without it. So a public name is imported when it is first asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
