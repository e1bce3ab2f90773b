"""What a program comes to does not depend on whether its ranks are threads or processes: digest, verdict and words."""

import pytest

from ddpsim import simulate
from ddpsim.scenarios import registry
from tests.tiers import sweep

ALWAYS = {
    "uneven-inputs-without-join",
    "groups-in-a-ring",
    "two-threads-one-group-repaired",
    "hook-under-join",
    "send-send",
}
READS_EARLY = {"async-result-read-before-wait"}
"""Their ranks read a tensor before they have waited: what it holds then is nobody's promise."""


def outcome(scenario, isolation, policy, seed):
    result = simulate(
        scenario.program,
        scenario.world_size,
        args=scenario.args,
        faults=scenario.faults,
        check="replicas",
        name=scenario.name,
        policy=policy,
        seed=seed,
        isolation=isolation,
    )
    told = [(finding.code, finding.ranks, finding.body) for finding in result.findings]
    return str(result.schedule), result.trace.digest(), result.verdict, told, result.waiting


@pytest.mark.parametrize(
    ("policy", "seed"), sweep([("round_robin", 0), ("random", 7)], lambda case: case[0] == "random")
)
@pytest.mark.parametrize("name", sweep(sorted(set(registry) - READS_EARLY), ALWAYS.__contains__))
def test_a_scenario_comes_to_the_same(name, policy, seed):
    scenario = registry[name]
    assert outcome(scenario, "process", policy, seed) == outcome(scenario, "thread", policy, seed)
