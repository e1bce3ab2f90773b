"""Every scenario comes out as expected: at several world sizes, under several policies, and again when replayed."""

import dataclasses

import pytest

from scenarios import registry, replay_scenario, run_scenario
from simulator import Code, Verdict

SCENARIOS = [pytest.param(scenario, id=name) for name, scenario in registry.items()]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_as_expected_at_every_world_size(scenario, world_size):
    result = run_scenario(scenario, world_size=world_size)
    assert scenario.expected.is_met_by(result), str(result)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", range(5))
def test_as_expected_under_random_schedules_and_again_when_replayed(scenario, seed):
    result = run_scenario(scenario, policy="random", seed=seed)
    assert scenario.expected.is_met_by(result), str(result)
    again = replay_scenario(scenario, str(result.schedule))
    assert again.trace.digest() == result.trace.digest()
    assert str(again) == str(result)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_result_is_that_of_round_robin_and_of_the_scenario(scenario):
    result = run_scenario(scenario)
    assert result.world_size == scenario.world_size
    assert str(result).splitlines()[-1] == f"  replay  ddpsim replay {scenario.name} {result.schedule}"
    for finding in result.findings:
        assert str(finding).splitlines()[-1] == f"  replay  {finding.replay}"
        assert finding.replay == result.replay


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_described(scenario):
    assert scenario.summary
    assert "\n" not in scenario.summary
    assert scenario.tags
    assert scenario.program.__doc__


@pytest.mark.parametrize("name", ["uneven-inputs", "unused-parameters"])
@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_end_with_the_same_parameters(name, world_size):
    result = run_scenario(name, world_size=world_size)
    assert all(values == result.returns[0] for values in result.returns)


@pytest.mark.parametrize("name", ["rank-crash", "unused-parameters-without-flag"])
def test_the_error_leads_and_the_ranks_that_wait_come_second(name):
    result = run_scenario(name)
    assert [(finding.code, finding.ranks) for finding in result.findings] == [
        (Code.RANK_ERROR, (1,)),
        (Code.DEADLOCK_DEAD_RANK, (1,)),
    ]


def test_send_send_shows_the_whole_ring():
    (finding,) = run_scenario("send-send", world_size=3).findings
    assert finding.cycle == (0, 1, 2)


def test_without_the_flag_the_unused_branch_is_the_only_fault():
    # The same program with the flag on passes: what the report advises works.
    scenario = registry["unused-parameters-without-flag"]
    program = scenario.program

    def with_flag(rank):
        import torch.nn.parallel

        wrapper = torch.nn.parallel.DistributedDataParallel
        program.__globals__["DistributedDataParallel"] = lambda module: wrapper(module, find_unused_parameters=True)
        try:
            program(rank)
        finally:
            program.__globals__["DistributedDataParallel"] = wrapper

    result = run_scenario(dataclasses.replace(scenario, program=with_flag))
    assert result.verdict is Verdict.PASS
