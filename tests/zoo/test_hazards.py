"""A hazard of the zoo is the same finding whether ranks are threads or processes. One scenario for each code."""

import pytest

from ddpsim import simulate
from ddpsim.scenarios import registry

BY_CODE = {
    str(scenario.expected.code): scenario
    for scenario in sorted(registry.values(), key=lambda each: each.name, reverse=True)
    if str(scenario.expected.code).startswith("hazard.")
    and scenario.program.__module__.startswith("ddpsim.scenarios.zoo.")
}


def findings(scenario, isolation):
    result = simulate(
        scenario.program,
        scenario.world_size,
        args=scenario.args,
        faults=scenario.faults,
        name=scenario.name,
        poison=True,
        isolation=isolation,
    )
    return [(finding.code, finding.ranks, finding.body) for finding in result.findings]


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_a_hazard_is_found_in_both_kinds_of_ranks(code):
    scenario = BY_CODE[code]
    found = findings(scenario, "process")
    assert code in [str(each) for each, *_ in found]
    assert found == findings(scenario, "thread")
