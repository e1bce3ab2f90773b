"""A hang in production as a scenario file: `ddpsim run`, pytest and `ddpsim shrink` take it."""

from __future__ import annotations

import shlex
from pathlib import Path

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.records.as_program import program_of
from ddpsim.simulator.records.diagnosis import Diagnosis
from ddpsim.simulator.verdict import Verdict


def written_scenario(diagnosis: Diagnosis, name: str, path: Path) -> str:
    """Write the scenario, and say what it finds. Raises UsageError where the records have nothing that fails."""
    from ddpsim.scenarios.files.saving import save
    from ddpsim.scenarios.files.value_scenarios import of_program

    if diagnosis.verdict is not Verdict.FAIL:
        raise UsageError("the records have no finding that a test could have, expected one: leave --write-test out")
    scenario = of_program(program_of(diagnosis), name=str(path))
    found = scenario.expected.text(scenario.world_size)
    leading = diagnosis.findings[0]
    save(scenario, path, summary=f"the last calls of {name}", cause=leading.summary)
    is_same = scenario.expected.code is leading.code and scenario.expected.ranks == leading.ranks
    odd = "" if is_same else f", where the records show {leading.code}: what they lack makes the difference"
    quoted = shlex.quote(str(path))
    return f"test    {path} finds {found}{odd}\n  ddpsim run {quoted}\n  ddpsim shrink {quoted}"
