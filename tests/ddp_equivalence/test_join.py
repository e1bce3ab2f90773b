"""Uneven inputs under `join()`: ranks that ran out shadow the others, and the last to join gives its model to all."""

from __future__ import annotations

import pytest

from ddpsim import simulate
from tests.ddp_equivalence.engine import DistributedDataParallel, check, train
from tests.ddp_equivalence.test_plain import OPTIONS, TINY, WORLDS
from tests.kit import networks
from tests.kit.results import returned
from tests.kit.training import (
    Training,
    batches,
    mean_square,
    uneven_batches,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]

COUNTS = {
    "one-more": (1, 2),
    "one-less": (2, 1),
    "first-has-none": (0, 3),
    "last-has-none": (3, 0),
    "tie-for-last": (3, 1, 3),
    "all-equal": (2, 2, 2),
    "only-one-has-any": (0, 2, 0),
    "join-in-one-step": (1, 3, 1),
    "staircase": (1, 2, 3, 4),
    "down": (4, 3, 2, 1),
    "tie-and-none": (2, 0, 2, 1),
    "alone": (3,),
    "nobody": (0, 0, 0),
}
BY = pytest.mark.parametrize("is_static", [True, False], ids=["by-all", "by-present"])


def joined(counts, build=networks.multilayer, **options):
    return Training(build, batches(*counts), mean_square, is_joined=True, **options)


@BY
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_inputs(counts, is_static):
    # With buffers, which come from the highest rank present.
    check(joined(counts, networks.with_buffers, divide_by_initial_world_size=is_static), {"bucket_cap_mb": TINY})


@BY
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "unused-static"])
@pytest.mark.parametrize("world_size", WORLDS)
def test_options(name, is_static, world_size):
    counts = [len(own) for own in uneven_batches(world_size)]
    check(joined(counts, divide_by_initial_world_size=is_static), OPTIONS[name])


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        pytest.param((0, 2), {"static_graph": True}, id="no-batch"),
        pytest.param((1, 3), {"static_graph": True, "find_unused_parameters": True}, id="unused-parameters"),
    ],
)
def test_static_graphs_that_torch_cannot_shadow(counts, options, engine_name):
    # A static graph reduces its used map in the first backward only; a joined rank shadows it in none, or in all. Real
    # gloo aborts the process over it. Ours announces what it calls.
    if engine_name == "ddp":
        check(joined(counts), options)
        return
    result = simulate(train, 2, args=(joined(counts), options))
    assert result.findings[0].code == "mismatch.dtype"
    assert "int32[6]" in str(result)


@pytest.mark.parametrize("counts", [(2, 4), (4, 0), (4, 2, 4)])
def test_no_sync(counts):
    check(joined(counts, networks.with_buffers, accumulate=2))


def test_momentum_of_the_last_to_join():
    check(joined((1, 4, 2), momentum=0.9), {"bucket_cap_mb": TINY})


@pytest.mark.parametrize("engine_name", ["ddp"], indirect=True)
@pytest.mark.parametrize("counts", [(1, 2), (2, 1, 3), (0, 1, 1, 1)])
def test_throw_on_early_termination(counts):
    def program(rank):
        model = DistributedDataParallel(networks.multilayer())
        taken = 0
        try:
            with model.join(throw_on_early_termination=True):
                for batch in batches(*counts)[rank]:
                    mean_square(model, batch).backward()
                    taken += 1
        except RuntimeError as error:
            return taken, str(error)

    first = [rank for rank, count in enumerate(counts) if count == min(counts)]
    who = f"rank{'s' * (len(first) > 1)} {', '.join(map(str, first))}"
    told = min(counts), f"{who} ran out of input (throw_on_early_termination)"
    assert returned(program, len(counts)) == (told,) * len(counts)
