"""Device meshes: what the groups of their dimensions are called, and where in a mesh a rank stands.

torch makes the groups of a mesh one after another, each with the mesh's constructor on the stack. They are called
after their dimension and what their members have in common: in a mesh of `dp` and `tp`, the group `tp (dp 1)` has the
ranks of the second row. What a version of torch does not tell is left out, and the group is called as torch calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ddpsim.simulator.wording import rank_list

_DESCRIPTION = "mesh_"
"""With this torch's descriptions of such groups begin, as in `mesh_tp`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of a mesh."""

    names: tuple[str, ...]
    """Of the dimensions."""
    sizes: tuple[int, ...]
    coordinates: Mapping[int, tuple[int, ...]]

    def place(self, rank: int) -> str:
        """Where a rank stands: `dp 1, tp 0`; "" if it is not in the mesh, or its place is as good as its number."""
        own = self.coordinates.get(rank)
        return "" if own is None or len(own) < 2 else _joined(zip(self.names, own, strict=True))

    def group_name(self, dimension: str, members: Sequence[int]) -> str:
        """What the group of some ranks along a dimension is called: `tp (dp 1)`."""
        places = [self.coordinates.get(rank) for rank in members]
        common = [
            index
            for index, size in enumerate(self.sizes)
            if size > 1 and None not in places and len({place[index] for place in places if place}) == 1
        ]
        alike = [
            rank
            for rank, place in self.coordinates.items()
            if places[0] is not None and all(place[index] == places[0][index] for index in common)
        ]
        if sorted(alike) != sorted(members):
            return f"{dimension} of {rank_list(members)}"
        own = places[0] or ()
        return f"{dimension} ({_joined((self.names[index], own[index]) for index in common)})" if common else dimension


def dimension_of(description: str | None) -> str | None:
    """The dimension for which torch makes a group that it describes so; None if it is not one of a mesh."""
    if description is None or not description.startswith(_DESCRIPTION) or description == "mesh_default":
        return None
    return _named(description.removeprefix(_DESCRIPTION))


def grid_being_made(frame: FrameType | None) -> Grid | None:
    """The mesh whose groups are being made, from `frame` outwards; of a part, or a view, of a mesh, that one."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.device_mesh" and "self" in frame.f_locals:
            mesh = frame.f_locals["self"]
            return _grid(getattr(mesh, "_root_mesh", None) or mesh)
        frame = frame.f_back
    return None


def _grid(mesh: Any) -> Grid | None:
    ranks = getattr(mesh, "mesh", None)
    if not isinstance(ranks, torch.Tensor):
        return None
    names = getattr(mesh, "mesh_dim_names", None) or [f"dim_{index}" for index in range(ranks.ndim)]
    everywhere = torch.ones_like(ranks, dtype=torch.bool).nonzero().tolist()
    coordinates = dict(zip(ranks.flatten().tolist(), map(tuple, everywhere), strict=True))
    return Grid(tuple(map(_named, names)), tuple(ranks.shape), coordinates)


def _named(dimension: str) -> str:
    """torch's `dim_0` of a mesh without names in words."""
    return dimension.replace("_", " ") if dimension.removeprefix("dim_").isdecimal() else dimension


def _joined(parts: Any) -> str:
    return ", ".join(f"{name} {index}" for name, index in parts)
