"""Device meshes: the names of the groups of their dimensions, and the coordinates of a rank in a mesh.

torch creates the groups of a mesh one after another, each with the mesh's constructor on the stack. A group is named
after its dimension and the coordinates that its members share: in a mesh of `dp` and `tp`, the group `tp (dp 1)` has
the ranks of the second row. If a version of torch does not have these attributes, the group keeps torch's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ddpsim.simulator.runtime.call_sites import frames_outwards
from ddpsim.simulator.wording import rank_list

_DESCRIPTION = "mesh_"
"""The beginning of the descriptions that torch gives the groups of a mesh, as in `mesh_tp`."""


@dataclass(frozen=True, slots=True)
class DeviceMeshGrid:
    """The ranks of a device mesh, as a grid with named dimensions."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinates: Mapping[int, tuple[int, ...]]

    def coordinates_text(self, rank: int) -> str:
        """Return a rank's coordinates in the mesh: `dp 1, tp 0`; "" for one dimension or a rank outside the mesh."""
        own = self.coordinates.get(rank)
        return "" if own is None or len(own) < 2 else join_coordinates(zip(self.names, own, strict=True))

    def group_name(self, dimension: str, members: Sequence[int]) -> str:
        """Return the name of the process group that these ranks form along a mesh dimension, such as `tp (dp 1)`."""
        places = [self.coordinates[rank] for rank in members if rank in self.coordinates]
        if len(places) < len(members):
            return f"{dimension} of {rank_list(members)}"
        first, values = places[0], [set(along) for along in zip(*places, strict=True)]
        common = [index for index, size in enumerate(self.sizes) if size > 1 and len(values[index]) == 1]
        alike = [rank for rank, place in self.coordinates.items() if all(place[i] == first[i] for i in common)]
        if sorted(alike) != sorted(members):
            return f"{dimension} of {rank_list(members)}"
        where = join_coordinates((self.names[index], first[index]) for index in common)
        return f"{dimension} ({where})" if where else dimension


def mesh_dimension_of(description: str | None) -> str | None:
    """Return the mesh dimension that torch names in a process group's description; None if the group is of no mesh."""
    if description is None or not description.startswith(_DESCRIPTION) or description == "mesh_default":
        return None
    return readable_dimension(description.removeprefix(_DESCRIPTION))


def find_mesh_under_construction(frame: FrameType | None) -> DeviceMeshGrid | None:
    """Return the device mesh that is creating process groups on this stack; it may be a slice or a view of a mesh."""
    for each in frames_outwards(frame):
        if each.f_globals.get("__name__") == "torch.distributed.device_mesh" and "self" in each.f_locals:
            mesh = each.f_locals["self"]
            return grid_of_mesh(getattr(mesh, "_root_mesh", None) or mesh)
    return None


def grid_of_mesh(mesh: Any) -> DeviceMeshGrid | None:
    """Return a device mesh as a grid of ranks with names of dimensions; None if the mesh has no tensor of ranks."""
    ranks = getattr(mesh, "mesh", None)
    if not isinstance(ranks, torch.Tensor):
        return None
    names = getattr(mesh, "mesh_dim_names", None) or [f"dim_{index}" for index in range(ranks.ndim)]
    everywhere = torch.ones_like(ranks, dtype=torch.bool).nonzero().tolist()
    coordinates = dict(zip(ranks.flatten().tolist(), map(tuple, everywhere), strict=True))
    return DeviceMeshGrid(tuple(map(readable_dimension, names)), tuple(ranks.shape), coordinates)


def readable_dimension(dimension: str) -> str:
    """Return a mesh dimension's name; `dim 0` for `dim_0`, torch's name in a mesh without names."""
    return dimension.replace("_", " ") if dimension.removeprefix("dim_").isdecimal() else dimension


def join_coordinates(parts: Any) -> str:
    """Return the coordinates of a rank in a mesh as text, such as "dp 0, tp 1"."""
    return ", ".join(f"{name} {index}" for name, index in parts)
