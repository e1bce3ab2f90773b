"""Randomly drawn declared trainings: both engines end, after every iteration, with what plain training gives."""

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from scenarios.reference import by_oracle
from scenarios.strategies import trainings
from tests.scenarios.drawing import run

pytestmark = pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel")

PARTS = 10
EXAMPLES = 50


def drawn(part, examples, check, **limits):
    """Call `check` with so many trainings, the same ones each time."""
    decorate = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    seed(part)(decorate(given(trainings(**limits))(check)))()


@pytest.mark.parametrize("part", range(PARTS))
def test_500_trainings_on_both_engines(part):
    count = 0

    def check(chosen):
        nonlocal count
        count += 1
        training, world_size = chosen
        reference = by_oracle(training, world_size)
        for engine in ("torch", "ddp"):
            assert str(run(training, world_size, engine, reference=reference)).startswith("PASS"), training

    drawn(part, EXAMPLES, check, for_torch=True)
    assert count >= EXAMPLES


@pytest.mark.parametrize("part", range(PARTS, PARTS + 4))
def test_what_only_our_engine_can_train(part):
    def check(chosen):
        training, world_size = chosen
        result = run(training, world_size, "ddp")
        assert result.findings == (), f"{training}\n{result}"

    drawn(part, EXAMPLES, check)
