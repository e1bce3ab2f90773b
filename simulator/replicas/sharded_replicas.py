"""check="replicas" of DTensors: samples the parameters that are replicated along a dimension of a device mesh.

After each optimizer step a DTensor is compared between the ranks of each mesh dimension on which it is placed as
`Replicate`. In a mesh of `dp` and `tp`, weights that are sharded along `tp` are compared along `dp`, and weights that
are not sharded along both. Shards are not compared.

If a DTensor uses only a part of a mesh, such as `mesh["tp"]`, then FSDP2, a wrapper or the program has to reduce along
the other dimensions. Along those that are named after data parallelism, all parameters of the optimizer are compared,
so that a missing reduction is found.

Ranks are compared after the same number of steps of optimizers that have parameters along the dimension.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch.distributed as dist

from ddpsim.simulator.diagnosis.replica_divergence import point_of_optimizer_step
from ddpsim.simulator.model_tensors import local_part
from ddpsim.simulator.replicas.replica_tensors import NoticeReplica, ReplicaSample, ReplicaTensor
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.verdict import Code

_DATA_PARALLEL = re.compile(r"(^|_)(dp|ddp|data|replicate|replicas?)(_|$)")
"""The names of mesh dimensions for data parallelism."""


class _GroupReplica(NamedTuple):
    """The tensors that a rank should have in common with the other ranks of one process group."""

    group: Any
    is_beside: bool
    """True if the group lies along a mesh dimension that the DTensors do not use."""
    tensors: list[ReplicaTensor]


class ShardedReplicas:
    """Compares the replicated DTensors of one execution."""

    def __init__(self, notice: NoticeReplica, communicated: Counter[int]) -> None:
        self._notice = notice
        self._communicated = communicated
        self._steps: Counter[tuple[int, str, bool]] = Counter()
        """The number of optimizer steps, by rank, group and `_GroupReplica.is_beside`."""
        self._latest: dict[int, list[_GroupReplica]] = {}
        """The tensors that the latest step of each rank changed."""

    def optimizer_step_ended(self, rank: int, optimizer: Any, names: Mapping[int, str]) -> None:
        """Record that a rank's optimizer has changed parameters; `names` has known parameter names by id."""
        kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if kind is None:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        placed = [each for each in parameters if isinstance(each, kind)]
        beside = {group.label: group for each in placed for group in _data_parallel_groups(each)}
        replicas: dict[tuple[str, bool], _GroupReplica] = {}
        for number, parameter in enumerate(parameters):
            name = names.get(id(parameter), f"parameter {number}")
            is_placed = isinstance(parameter, kind)
            along = [(group, False) for group in _replicating_groups(parameter)] if is_placed else []
            along += [(group, True) for group in (_data_parallel_groups(parameter) if is_placed else beside.values())]
            for group, is_beside in along:
                replica = replicas.setdefault((group.label, is_beside), _GroupReplica(group, is_beside, []))
                replica.tensors.append(ReplicaTensor(name, local_part(parameter), Code.DIVERGENCE_PARAMETERS))
        self._latest[rank] = list(replicas.values())
        for replica in replicas.values():
            self._steps[rank, replica.group.label, replica.is_beside] += 1
            self._send_sample(rank, replica)

    def rank_returned(self, rank: int) -> None:
        """Record that a rank's program returned."""
        for replica in self._latest.pop(rank, []):
            self._send_sample(rank, replica, has_ended=True)

    def _send_sample(self, rank: int, replica: _GroupReplica, *, has_ended: bool = False) -> None:
        label, is_beside = replica.group.label, replica.is_beside
        step = self._steps[rank, label, is_beside]
        moment = point_of_optimizer_step(label, step, is_beside=is_beside, has_ended=has_ended)
        key, size = (label, -3 if is_beside else -2), replica.group.size()
        site, passed = None if has_ended else current_user_site(), self._communicated[rank]
        sample = ReplicaSample(key, rank, size, moment, replica.tensors, site, has_trained=True, communicated=passed)
        self._notice(sample)


def _data_parallel_groups(parameter: Any) -> Iterator[Any]:
    """Yield the process groups along those data-parallel dimensions of the whole mesh that a DTensor does not use."""
    mesh = parameter.device_mesh
    root = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    if root is mesh or root.get_coordinate() is None or not local_part(parameter).numel():
        return
    own = set(mesh.mesh.flatten().tolist())
    for dimension, name in enumerate(root.mesh_dim_names or ()):
        if root.size(dimension) > 1 and _DATA_PARALLEL.search(name):
            group = root.get_group(dimension)
            if not own.issuperset(dist.get_process_group_ranks(group)):  # a flattened dimension contains its parts
                yield group


def _replicating_groups(parameter: Any) -> Iterator[Any]:
    """Yield the process groups in which all ranks hold the same part of a DTensor as the current rank."""
    mesh = parameter.device_mesh
    if mesh.get_coordinate() is None or not local_part(parameter).numel():
        return
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_replicate() and mesh.size(dimension) > 1:
            yield mesh.get_group(dimension)
