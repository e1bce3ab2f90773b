"""Device meshes: what the groups of their dimensions are called, and where ranks stand in them."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ddpsim import simulate
from ddpsim.reports.making.result_document import run_of
from ddpsim.simulator.attribution.meshes import DeviceMeshGrid, mesh_dimension_of
from tests.kit.results import codes

GRID = DeviceMeshGrid(("dp", "tp"), (2, 2), {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)})


def labels(program, world_size):
    result = simulate(program, world_size)
    result.raise_for_verdict()
    return [[group.label for group in returned] for returned in result.returns]


def test_a_group_is_called_after_its_dimension_what_its_members_share_and_its_mesh():
    def program(rank):
        meshes = [init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) for _ in range(2)]
        total = torch.ones(1)
        for mesh in meshes:
            dist.all_reduce(total, group=mesh.get_group("tp"))
        return [*meshes[0].get_all_groups(), meshes[1].get_group("tp")]

    assert labels(program, 4) == [
        ["dp (tp 0)", "tp (dp 0)", "tp (dp 0) #2"],
        ["dp (tp 1)", "tp (dp 0)", "tp (dp 0) #2"],
        ["dp (tp 0)", "tp (dp 1)", "tp (dp 1) #2"],
        ["dp (tp 1)", "tp (dp 1)", "tp (dp 1) #2"],
    ]


def test_dimensions_without_names_of_one_rank_and_flattened():
    def program(rank):
        nameless = init_device_mesh("cpu", (2, 2))
        mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
        flat = mesh["dp", "tp"]._flatten("dp_tp")
        return [*nameless.get_all_groups(), *mesh.get_all_groups(), flat.get_group()]

    assert labels(program, 4)[2] == [
        "dim 0 (dim 1 0)",
        "dim 1 (dim 0 1)",
        "pp (tp 0)",
        "dp (pp 1, tp 0) of rank 2",
        "tp (pp 1)",
        "dp_tp (pp 1)",
    ]


def test_ranks_are_told_by_their_coordinates():
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        if rank != 3:
            dist.all_reduce(torch.ones(1), group=mesh.get_group("dp"))
        else:
            dist.broadcast(torch.ones(1), src=1, group=mesh.get_group("dp"))

    result = simulate(program, 4)
    assert codes(result) == [("mismatch.operation", (1, 3))]
    rows = [line for line in str(result.findings[0]).splitlines() if line.startswith("  rank ")]
    assert [row.split("  ")[1] for row in rows] == ["rank 1 (dp 0, tp 1)", "rank 3 (dp 1, tp 1)"]
    assert [rank.coordinates for rank in run_of(result).ranks][1::2] == ["dp 0, tp 1", "dp 1, tp 1"]


def test_a_rank_of_one_dimension_is_told_by_its_number():
    def program(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        if rank:
            dist.barrier(group=mesh.get_group())

    result = simulate(program, 2)
    assert codes(result) == [("deadlock.missing_rank", (0,))]
    assert "(dp" not in str(result)


def test_members_that_the_coordinates_do_not_tell_are_named():
    assert GRID.group_name("tp", [2, 3]) == "tp (dp 1)"
    assert GRID.group_name("world", [0, 1, 2, 3]) == "world"
    assert GRID.group_name("diagonal", [0, 3]) == "diagonal of ranks 0, 3"
    assert GRID.group_name("other", [4, 5]) == "other of ranks 4, 5"
    assert (GRID.coordinates_text(3), GRID.coordinates_text(4)) == ("dp 1, tp 1", "")


def test_groups_that_are_no_dimensions_keep_their_names():
    assert [mesh_dimension_of(each) for each in ("mesh_tp", "mesh_dim_1", "mesh_default", "undefined", None)] == [
        "tp",
        "dim 1",
        None,
        None,
        None,
    ]
