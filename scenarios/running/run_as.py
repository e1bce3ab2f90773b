"""What a caller says of how the ranks of a scenario run, whatever it is and wherever it comes from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim import UsageError
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.fault_text import fault_of, text_of
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.run_options import RunKeywords

_REPLICAS, _IF_ANY, _NOTHING = CHECKS = ("replicas", "replicas-if-any", "none")
"""What is compared besides, be it that there is any or not, and what says that nothing is."""


@dataclass(frozen=True, slots=True)
class RunAs:
    """Options of a run; None for what the scenario says itself."""

    isolation: str | None = None
    gpus: int | None = None
    check: str | None = None
    alike: bool = False
    preload: Sequence[str] = ()
    one_at_a_time: bool = False
    poison: bool | None = None
    backend_semantics: str | None = None
    faults: Sequence[str] = ()
    """Besides the scenario's own, as `fault_of` reads them."""

    def applied_to(self, scenario: Scenario) -> Scenario:
        """The scenario, run so. Raises UsageError for a check or a fault that there is not."""
        if self.check not in (None, *CHECKS):
            raise UsageError(f"check is {self.check!r}, expected one of {', '.join(CHECKS)}: give one of these names")
        if self.isolation is not None:
            scenario = replace(scenario, isolation=self.isolation)
        if self.gpus is not None:
            scenario = replace(scenario, gpus=self.gpus)
        if self.alike:
            scenario = replace(scenario, alike=True)
        if self.preload:
            scenario = replace(scenario, preload=tuple(self.preload))
        if self.one_at_a_time:
            scenario = replace(scenario, one_at_a_time=True)
        if self.poison is not None:
            scenario = replace(scenario, poison=self.poison)
        if self.backend_semantics is not None:
            scenario = replace(scenario, backend_semantics=self.backend_semantics)
        if self.faults:
            # A replay line says again those that a file has said.
            added = tuple(fault for fault in map(fault_of, self.faults) if fault not in scenario.added_faults)
            scenario = replace(
                scenario, faults=(*scenario.faults, *added), added_faults=(*scenario.added_faults, *added)
            )
        if self.check is not None:
            scenario = replace(scenario, check=None if self.check == _NOTHING else self.check)
        return scenario


AS_IT_SAYS = RunAs()


def run_keywords(scenario: Scenario, transport: str, *, poisons: bool = False) -> RunKeywords:
    """What `simulate`, `replay` and `explore` are asked for alike to run a scenario.

    `poisons`: tensors in flight hold what shows, unless the scenario says.
    """
    return {
        "args": scenario.args,
        "transport": transport,
        "faults": scenario.faults,
        "check": scenario.check,
        "poison": poisons if scenario.poison is None else scenario.poison,
        "name": scenario.name,
        "isolation": scenario.isolation,
        "gpus": scenario.gpus,
        "preload": scenario.preload,
        "one_at_a_time": scenario.one_at_a_time,
        "backend_semantics": scenario.backend_semantics,
    }


def words_of(scenario: Scenario) -> list[str]:
    """The options that a command has to say for a scenario to run as it does, where a file does not say them."""
    words = [] if scenario.isolation is None else ["--isolation", scenario.isolation]
    words += [] if scenario.gpus is None else ["--gpus", str(scenario.gpus)]
    words += [word for name in scenario.preload for word in ("--preload", name)]
    words += [] if scenario.backend_semantics == GLOO.name else ["--backend-semantics", scenario.backend_semantics]
    words += [word for fault in scenario.added_faults for word in ("--fault", shlex.quote(text_of(fault)))]
    return words + ([] if scenario.check == _IF_ANY else ["--check", scenario.check or _NOTHING])
