"""check="replicas" of DTensors: what a mesh says is replicated is compared along that dimension of it.

After each optimizer step a parameter that is a DTensor is compared between the ranks of each mesh dimension on which it
is placed as `Replicate`: in a mesh of `dp` and `tp`, weights in shards along `tp` between the ranks of one `dp` group,
and weights that tensor parallelism leaves whole in both. Shards are no replicas, and are compared with nobody.

Ranks are compared after as many steps of optimizers that have parameters along the dimension.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from ddpsim.simulator.diagnosis.replica_divergence import when_updated
from ddpsim.simulator.process_group.exchanged import Exchanged
from ddpsim.simulator.process_group.replica_judge import Look
from ddpsim.simulator.process_group.replica_tensors import Named
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.verdict import Code


class Sink(Protocol):
    """Is told of replicas."""

    def look(self, look: Look) -> None:
        """A replica, at a moment at which it should be equal to the others."""


class ShardedReplicas:
    """Watches one execution for them."""

    def __init__(self, judge: Sink, exchanged: Exchanged) -> None:
        self._judge = judge
        self._exchanged = exchanged
        self._steps: Counter[tuple[int, str]] = Counter()
        """By rank and group."""

    def optimizer_stepped(self, rank: int, optimizer: Any, names: Mapping[int, str]) -> None:
        """A rank's optimizer has changed parameters; `names` has those that are known, by id."""
        kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        if kind is None:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"] if isinstance(each, kind)]
        replicas: dict[str, tuple[Any, list[Named]]] = {}
        for number, parameter in enumerate(parameters):
            name = names.get(id(parameter), f"parameter {number}")
            for group in _replicating(parameter):
                _, own = replicas.setdefault(group.label, (group, []))
                own.append(Named(name, _local(parameter), Code.DIVERGENCE_PARAMETERS))
        for label, (group, own) in replicas.items():
            self._look(rank, label, group.size(), own)

    def _look(self, rank: int, label: str, size: int, own: list[Named]) -> None:
        self._steps[rank, label] += 1
        moment = when_updated(label, self._steps[rank, label])
        exchanged = self._exchanged.by(rank)
        self._judge.look(Look((label, -2), rank, size, moment, own, site_here(), has_trained=True, exchanged=exchanged))


def _local(parameter: Any) -> Tensor:
    local: Tensor = parameter._local_tensor.detach()
    return local


def _replicating(parameter: Any) -> Iterator[Any]:
    """The groups whose ranks have the same part of a DTensor as this one."""
    mesh = parameter.device_mesh
    if mesh.get_coordinate() is None or not _local(parameter).numel():
        return
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_replicate() and mesh.size(dimension) > 1:
            yield mesh.get_group(dimension)
