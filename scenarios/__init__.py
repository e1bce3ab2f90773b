"""Scenarios: programs of several ranks, each with its expected outcome; and the tools that run them.

`registry` maps names to scenarios, `load` finds one by name or in a file, and `run_scenario` simulates it. `@scenario`
makes a scenario from a function, and `@repairs` its repaired twin. `per_rank` makes fixtures for pytest.

The console, the pytest plugin, fuzzing and real jobs are in this package, too, because it is the topmost of the four.
"""

import typing

from ddpsim.simulator.imports import importer_of_public_names as _importer_of_public_names

if typing.TYPE_CHECKING:
    from ddpsim.scenarios.files.loader import load as load
    from ddpsim.scenarios.files.loader import registry as registry
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario as ShrunkScenario
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import shrink_scenario as shrink_scenario
    from ddpsim.scenarios.model import CLEAN as CLEAN
    from ddpsim.scenarios.model import Expectation as Expectation
    from ddpsim.scenarios.model import Scenario as Scenario
    from ddpsim.scenarios.model import every_rank as every_rank
    from ddpsim.scenarios.model import finds as finds
    from ddpsim.scenarios.model import odd_one_out as odd_one_out
    from ddpsim.scenarios.model import repairs as repairs
    from ddpsim.scenarios.model import scenario as scenario
    from ddpsim.scenarios.pytest_plugin.fixtures import per_rank as per_rank
    from ddpsim.scenarios.running.exploring import explore_scenario as explore_scenario
    from ddpsim.scenarios.running.runner import replay_scenario as replay_scenario
    from ddpsim.scenarios.running.runner import run_scenario as run_scenario
    from ddpsim.scenarios.training.snapshot import Snapshot as Snapshot
    from ddpsim.scenarios.training.snapshot import snapshot as snapshot

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

__all__ = list(_HOMES)

__getattr__ = _importer_of_public_names(__name__, _HOMES)
