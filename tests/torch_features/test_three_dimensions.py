"""FSDP2, tensor and pipeline parallelism at once train the model that one process trains whole."""

import runpy
from pathlib import Path

import pytest
from torch.distributed.device_mesh import init_device_mesh

from tests.kit.results import returned

PROGRAM = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples/programs/three_dimensions.py"))


def train(rank, mesh, layers, steps):
    dimensions = init_device_mesh("cpu", mesh, mesh_dim_names=("pp", "dp", "tp"))
    return PROGRAM["furthest_from_the_whole"](dimensions, layers, steps)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    ("mesh", "layers"),
    [
        pytest.param((2, 2, 2), 2, marks=pytest.mark.tier("ci")),
        pytest.param((1, 2, 4), 1, marks=pytest.mark.tier("nightly")),
        pytest.param((4, 2, 1), 4, marks=pytest.mark.tier("nightly")),
        pytest.param((4, 4, 4), 4, marks=pytest.mark.tier("nightly")),
    ],
)
def test_every_shard_is_a_part_of_the_whole(mesh, layers):
    ranks = mesh[0] * mesh[1] * mesh[2]
    assert max(returned(train, ranks, args=(mesh, layers, 2))) < 1e-5
