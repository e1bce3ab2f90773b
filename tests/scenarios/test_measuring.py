"""Measuring side by side: rounds alternate, the first does not count, and the figures are worked out from each run."""

import pytest

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.running import measuring
from ddpsim.scenarios.running.measuring import MeasuredCase, collect_measurements, measure_runs


@pytest.fixture
def runs(monkeypatch):
    """The scenarios that were run, in order."""
    run, found = measuring.run_scenario, []

    def noted(scenario, engine, **options):
        found.append((scenario.name, engine.value, options))
        return run(scenario, engine, **options)

    monkeypatch.setattr(measuring, "run_scenario", noted)
    return found


def test_rounds_alternate_and_the_first_only_warms_up_and_a_case_may_stand_there_twice(runs):
    cases = [MeasuredCase(load("send-send"), Engine.TORCH), MeasuredCase(load("send-send-repaired"), Engine.DDP)]
    # Starts and ends: the round that does not count, then 3 rounds of two runs with 1, 20; 4, 20; 2, 50 seconds.
    ticks = iter([0, 9, 9, 99, 0, 1, 1, 21, 30, 34, 40, 60, 60, 62, 70, 120])
    found = list(measure_runs(cases, 3, clock=lambda: next(ticks)))
    assert [each[:2] for each in runs] == [("send-send", "torch"), ("send-send-repaired", "ddp")] * 4
    assert {each[2]["transport"] for each in runs} == {"memory"}
    assert [(each.number, each.seconds) for each in found] == [(0, 1), (1, 20), (0, 4), (1, 20), (0, 2), (1, 50)]
    hangs, passes = collect_measurements(found)
    assert (hangs.case, hangs.seconds, hangs.median) == (cases[0], (1, 4, 2), 2)
    assert (passes.case, passes.seconds, passes.median) == (cases[1], (20, 20, 50), 20)
    assert hangs.events == len(tuple(hangs.results[0].trace)) > 0
    assert passes.events_per_second == len(tuple(passes.results[0].trace)) / 20
    first, second = collect_measurements(measure_runs(cases[:1] * 2, 1))
    assert (len(first.seconds), len(second.seconds)) == (1, 1)
