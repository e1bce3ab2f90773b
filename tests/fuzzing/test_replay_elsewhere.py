"""A replay token and a saved file reproduce digest, verdict and findings of 200 fuzzed failures in another process."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from ddpsim import Verdict
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.files.value_scenarios import scenario_of_training
from ddpsim.scenarios.fuzzing.batch import draw_values, use_campaign_settings
from ddpsim.scenarios.fuzzing.strategies import policies, scenarios, trainings
from ddpsim.scenarios.fuzzing.strategies.trainings import limit_to_torch
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from tests.fuzzing.replaying import planted, told

pytestmark = pytest.mark.tier("nightly")

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS, TRAININGS = 190, 5


def failures(strategy, count, *, of):
    """So many scenarios, of those drawn, that fail under their policy, each with the policy's name and its result."""
    found = []

    def take(chosen):
        scenario, policy = chosen
        if len(found) < count:
            result = run_scenario(scenario, policy=policy)
            if result.verdict is Verdict.FAIL:
                found.append((replace(scenario, choices=result.schedule.choices), type(policy).__name__, result))

    draw_values(st.tuples(strategy, policies()), 0, of, take)
    assert len(found) == count
    return found


def is_torch_known_to_fail(chosen):
    """Apart from the map of used parameters of a rank without a batch, which is memory that nobody wrote."""
    training, _ = chosen
    is_open = training.engine_options["find_unused_parameters"] and min(training.iterations) == 0
    return training.join is not None and training != limit_to_torch(training) and not is_open


def test_200_failures(tmp_path):
    torchs = trainings(for_torch="documented").filter(is_torch_known_to_fail)
    with use_campaign_settings(), planted():
        found = [
            *failures(scenarios(kinds=(Kind.BROKEN_PROGRAM,)), PROGRAMS, of=206),
            *failures(scenarios(kinds=(Kind.TRAINING,), engines=(Engine.DDP,)), TRAININGS, of=10),
            *failures(torchs.map(lambda chosen: scenario_of_training(*chosen, name="training")), TRAININGS, of=14),
        ]
    assert len(found) == 200
    recorded = []
    for number, (scenario, _, result) in enumerate(found):
        (tmp_path / f"{number}.toml").write_text(scenario_as_toml(scenario))
        recorded.append((f"{number}.toml", scenario.name, str(result.schedule)))
    (tmp_path / "recorded.json").write_text(json.dumps(recorded))

    command = [sys.executable, "-m", "tests.fuzzing.replaying", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stderr=subprocess.PIPE)
    replayed = json.loads((tmp_path / "replayed.json").read_text())
    assert replayed == [told(result) for _, _, result in found]

    codes = Counter(result.findings[0].code for _, _, result in found)
    assert len(codes) >= 10
    assert min(Counter(policy for _, policy, _ in found).values()) >= 30
    assert sum(any(scenario.choices) for scenario, _, _ in found) >= 120
