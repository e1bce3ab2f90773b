"""Scenarios: programs of several ranks, each with its expected outcome; and the tools that run them.

`registry` maps names to scenarios, `load` finds one by name or in a file, and `run_scenario` simulates it. `@scenario`
makes a scenario from a function, and `@repairs` its repaired twin. `per_rank` makes fixtures for pytest.

The console, the pytest plugin, fuzzing and real jobs are in this package, too, because it is the topmost of the four.
"""

import typing

if typing.TYPE_CHECKING:
    from ddpsim.scenarios.files.loader import load, registry
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario, shrink_scenario
    from ddpsim.scenarios.model import CLEAN, Expectation, Scenario, every_rank, finds, odd_one_out, repairs, scenario
    from ddpsim.scenarios.pytest_plugin.fixtures import per_rank
    from ddpsim.scenarios.running.exploring import explore_scenario
    from ddpsim.scenarios.running.runner import replay_scenario, run_scenario
    from ddpsim.scenarios.training.snapshot import Snapshot, snapshot

_PUBLIC_NAMES = {
    "files.loader": ("load", "registry"),
    "fuzzing.shrinking.shrinker": ("ShrunkScenario", "shrink_scenario"),
    "model": ("CLEAN", "Expectation", "Scenario", "every_rank", "finds", "odd_one_out", "repairs", "scenario"),
    "pytest_plugin.fixtures": ("per_rank",),
    "running.exploring": ("explore_scenario",),
    "running.runner": ("replay_scenario", "run_scenario"),
    "training.snapshot": ("Snapshot", "snapshot"),
}
_HOMES = {name: f"{__name__}.{home}" for home, names in _PUBLIC_NAMES.items() for name in names}

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
    from ddpsim.simulator.imports import import_public_name

    value = globals()[name] = import_public_name(_HOMES[name], name)
    return value
