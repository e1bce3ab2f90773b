"""Scenarios: programs of several ranks, each with its expected outcome; and the tools that run them.

`registry` maps names to scenarios, `load` finds one by name or in a file, and `run_scenario` simulates it. `@scenario`
makes a scenario from a function, and `@repairs` its repaired twin. `per_rank` makes fixtures for pytest.

The console, the pytest plugin, fuzzing and real jobs are in this package, too, because it is the topmost of the four.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.files.registry import registry
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario, shrink_scenario
    from ddpsim.scenarios.model import CLEAN, Expectation, Scenario, every_rank, finds, odd_one_out, repairs, scenario
    from ddpsim.scenarios.pytest_plugin.fixtures import per_rank
    from ddpsim.scenarios.running.exploring import explore_scenario
    from ddpsim.scenarios.running.runner import replay_scenario, run_scenario
    from ddpsim.scenarios.training.snapshot import Snapshot, snapshot

_HOMES = {
    "CLEAN": "ddpsim.scenarios.model",
    "Expectation": "ddpsim.scenarios.model",
    "Scenario": "ddpsim.scenarios.model",
    "ShrunkScenario": "ddpsim.scenarios.fuzzing.shrinking.shrinker",
    "Snapshot": "ddpsim.scenarios.training.snapshot",
    "every_rank": "ddpsim.scenarios.model",
    "explore_scenario": "ddpsim.scenarios.running.exploring",
    "finds": "ddpsim.scenarios.model",
    "load": "ddpsim.scenarios.files.loader",
    "odd_one_out": "ddpsim.scenarios.model",
    "per_rank": "ddpsim.scenarios.pytest_plugin.fixtures",
    "registry": "ddpsim.scenarios.files.registry",
    "repairs": "ddpsim.scenarios.model",
    "replay_scenario": "ddpsim.scenarios.running.runner",
    "run_scenario": "ddpsim.scenarios.running.runner",
    "scenario": "ddpsim.scenarios.model",
    "shrink_scenario": "ddpsim.scenarios.fuzzing.shrinking.shrinker",
    "snapshot": "ddpsim.scenarios.training.snapshot",
}

__all__ = [
    "CLEAN",
    "Expectation",
    "Scenario",
    "ShrunkScenario",
    "Snapshot",
    "every_rank",
    "explore_scenario",
    "finds",
    "load",
    "odd_one_out",
    "per_rank",
    "registry",
    "repairs",
    "replay_scenario",
    "run_scenario",
    "scenario",
    "shrink_scenario",
    "snapshot",
]


def __getattr__(name: str) -> object:
    # Public names are imported at their first use: they need torch, which takes a second to import, and the command
    # line in this package answers `--help` or a mistyped option without it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddpsim.simulator.imports import without_collections
    from ddpsim.simulator.torch_version import complaint

    try:
        with without_collections():
            home = importlib.import_module(_HOMES[name])
    except ImportError:
        if line := complaint():
            raise ImportError(line) from None
        raise
    value = globals()[name] = getattr(home, name)
    return value
