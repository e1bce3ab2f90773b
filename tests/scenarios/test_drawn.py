"""Randomly drawn declared trainings: both engines end, after every iteration, with what plain training gives."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ddpsim.scenarios.strategies import trainings
from ddpsim.scenarios.training.reference import by_oracle
from tests.scenarios.drawing import run
from tests.tiers import sweep

pytestmark = [
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
    pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning"),
]

PARTS = 20
EXAMPLES = 25


def drawn(part, examples, check, **limits):
    """Call `check` with so many different trainings, the same ones each time."""
    seen = set()

    def once(chosen):
        if len(seen) < examples and repr(chosen) not in seen:
            seen.add(repr(chosen))
            check(*chosen)

    decorate = settings(
        max_examples=2 * examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    seed(part)(decorate(given(trainings(**limits))(once)))()
    assert len(seen) == examples


@pytest.mark.parametrize("part", sweep(range(PARTS), lambda part: part == 0))
def test_500_trainings_on_both_engines(part):
    def check(training, world_size):
        reference = by_oracle(training, world_size)
        for engine in ("torch", "ddp"):
            result = run(training, world_size, engine, reference=reference)
            assert result.findings == (), f"{training}\n{result}"

    drawn(part, EXAMPLES, check, for_torch=True)


@pytest.mark.parametrize("part", sweep(range(PARTS, PARTS + 8), lambda part: part == PARTS))
def test_what_only_our_engine_can_train(part):
    def check(training, world_size):
        result = run(training, world_size, "ddp")
        assert result.findings == (), f"{training}\n{result}"

    drawn(part, EXAMPLES, check)


# --- are they worth drawing? ------------------------------------------------------------------------------------------


def features(training, world_size):
    """What a training has that others have not."""
    counts = [training.count(rank) for rank in range(world_size)]
    is_uneven = len(set(counts)) > 1
    last = counts.count(max(counts))
    options = {key for key, value in training.engine_options.items() if value}
    names = [choice.name for choice in training.networks]
    yield from names
    yield from (each.action.value for each in training.exceptions if each.action)
    yield from options
    yield training.optimizer.name.value
    yield str(training.dtype)
    given = {
        "several networks": len(training.networks) > 1,
        "uses": any(each.uses is not None for each in training.exceptions),
        "join": training.join is not None,
        "uneven": is_uneven,
        "rank 0 leaves early": counts[0] < max(counts),
        "a rank without input": 0 in counts and max(counts) > 0,
        "tie": is_uneven and last > 1,
        "by ranks present": is_uneven and training.join and not training.join.divide_by_initial_world_size,
        "accumulation under join": is_uneven and any(e.action == "accumulate" for e in training.exceptions),
        "buffers under join": is_uneven and {"batch_norm", "broadcast_buffers"} <= {*names, *options},
        "sharded": training.optimizer.is_sharded,
        "momentum": training.optimizer.momentum > 0,
        "hook": training.communication_hook is not None,
        "average buffers": training.averages_buffers,
        "loss": training.reduces_loss,
        "rows by rank": isinstance(training.rows, tuple),
    }
    yield from (name for name, is_given in given.items() if is_given)


@pytest.mark.tier("nightly")
def test_every_feature_is_drawn_often():
    counted = Counter()
    for part in range(PARTS):
        drawn(part, EXAMPLES, lambda *chosen: counted.update(set(features(*chosen))), for_torch=True)
    rare = {name: count for name, count in counted.items() if count < 3}
    assert not rare
    assert len(counted) >= 40
