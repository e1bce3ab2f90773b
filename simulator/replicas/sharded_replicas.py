"""check="replicas" of DTensors: what a mesh says is replicated is compared along that dimension of it.

After each optimizer step a parameter that is a DTensor is compared between the ranks of each mesh dimension on which it
is placed as `Replicate`: in a mesh of `dp` and `tp`, weights in shards along `tp` between the ranks of one `dp` group,
and weights that tensor parallelism leaves whole in both. Shards are no replicas, and are compared with nobody.

A DTensor may lie on a part of a mesh only, `mesh["tp"]`, and something else has to reduce along the other dimensions:
FSDP2, a wrapper or the program. Of those that are called after data parallelism all parameters of the optimizer are
compared, as replicas are what such a dimension is for: where nobody reduces along `dp`, that is found.

Ranks are compared after as many steps of optimizers that have parameters along the dimension.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from ddpsim.simulator.diagnosis.replica_divergence import when_updated
from ddpsim.simulator.replicas.replica_tensors import Named, NoticeReplica, ReplicaSample
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.verdict import Code

_DATA_PARALLEL = re.compile(r"(^|_)(dp|ddp|data|replicate|replicas?)(_|$)")
"""Names of mesh dimensions."""


class _Replica(NamedTuple):
    """What a rank has in common with the ranks of one group."""

    group: Any
    is_beside: bool
    """No DTensor lies along the group."""
    tensors: list[Named]


class ShardedReplicas:
    """Compares the replicated DTensors of one execution."""

    def __init__(self, notice: NoticeReplica, communicated: Counter[int]) -> None:
        self._notice = notice
        self._communicated = communicated
        self._steps: Counter[tuple[int, str, bool]] = Counter()
        """By rank, group and whether that lies beside."""
        self._latest: dict[int, list[_Replica]] = {}
        """What each rank's latest step changed."""

    def optimizer_stepped(self, rank: int, optimizer: Any, names: Mapping[int, str]) -> None:
        """A rank's optimizer has changed parameters; `names` has those that are known, by id."""
        kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if kind is None:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        beside = {group.label: group for each in parameters if isinstance(each, kind) for group in _beside(each)}
        replicas: dict[tuple[str, bool], _Replica] = {}
        for number, parameter in enumerate(parameters):
            name = names.get(id(parameter), f"parameter {number}")
            is_placed = isinstance(parameter, kind)
            along = [(group, False) for group in _replicating(parameter)] if is_placed else []
            along += [(group, True) for group in (_beside(parameter) if is_placed else beside.values())]
            for group, is_beside in along:
                replica = replicas.setdefault((group.label, is_beside), _Replica(group, is_beside, []))
                tensor = _local(parameter) if is_placed else parameter.detach()
                replica.tensors.append(Named(name, tensor, Code.DIVERGENCE_PARAMETERS))
        self._latest[rank] = list(replicas.values())
        for replica in replicas.values():
            self._steps[rank, replica.group.label, replica.is_beside] += 1
            self._look(rank, replica)

    def rank_returned(self, rank: int) -> None:
        """A rank's program returned."""
        for replica in self._latest.pop(rank, []):
            self._look(rank, replica, has_ended=True)

    def _look(self, rank: int, replica: _Replica, *, has_ended: bool = False) -> None:
        label, is_beside = replica.group.label, replica.is_beside
        step = self._steps[rank, label, is_beside]
        moment = when_updated(label, step, is_beside=is_beside, has_ended=has_ended)
        communicated = self._communicated[rank]
        key = (label, -3 if is_beside else -2)
        size = replica.group.size()
        site = None if has_ended else site_here()
        sample = ReplicaSample(
            key, rank, size, moment, replica.tensors, site, has_trained=True, communicated=communicated
        )
        self._notice(sample)


def _local(parameter: Any) -> Tensor:
    local: Tensor = parameter._local_tensor.detach()
    return local


def _beside(parameter: Any) -> Iterator[Any]:
    """The groups of data parallelism along which a DTensor does not lie, though the whole mesh has them."""
    mesh = parameter.device_mesh
    root = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    if root is mesh or root.get_coordinate() is None or not _local(parameter).numel():
        return
    own = set(mesh.mesh.flatten().tolist())
    for dimension, name in enumerate(root.mesh_dim_names or ()):
        if root.size(dimension) > 1 and _DATA_PARALLEL.search(name):
            group = root.get_group(dimension)
            if not own.issuperset(dist.get_process_group_ranks(group)):  # a flattened dimension has the parts of it
                yield group


def _replicating(parameter: Any) -> Iterator[Any]:
    """The groups whose ranks have the same part of a DTensor as this one."""
    mesh = parameter.device_mesh
    if mesh.get_coordinate() is None or not _local(parameter).numel():
        return
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_replicate() and mesh.size(dimension) > 1:
            yield mesh.get_group(dimension)
