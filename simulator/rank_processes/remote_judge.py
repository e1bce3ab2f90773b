"""What stands for the judge of check="replicas" in the process of a rank: it sends what it is told."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.attribution.wrapper import Wrapper, WrapperKey
from ddpsim.simulator.rank_processes.messages import ReplicaMoved, ReplicaSeen, ReplicasLeft
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.replicas.replica_judge import Look
from ddpsim.simulator.replicas.replica_tensors import Named


class RemoteJudge:
    """The judge of the execution that the rank of this process belongs to."""

    def __init__(self, channel: RankChannel) -> None:
        self._own_channel = channel

    def moved(self, wrapper: Wrapper) -> None:
        """A wrapper is at another step, or has joined the others."""
        self._own_channel.send(
            ReplicaMoved(
                wrapper.key, wrapper.rank, wrapper.step, wrapper.aligned_step, wrapper.is_joined, wrapper.reduced
            )
        )

    def look(self, look: Look) -> None:
        """A replica, at a moment at which it should be equal to the others."""
        self._own_channel.send(ReplicaSeen(look._replace(tensors=_packed(look.tensors))))

    def returned(self, rank: int, left: Sequence[tuple[WrapperKey, Sequence[Named]]], exchanged: int) -> None:
        """The rank's program returned, and left its models' parameters like this."""
        self._own_channel.send(ReplicasLeft(rank, tuple((key, _packed(tensors)) for key, tensors in left), exchanged))


def _packed(tensors: Sequence[Named]) -> tuple[Named, ...]:
    """Without what is behind a tensor: its graph, and the storage that it is a part of."""
    return tuple(each._replace(tensor=each.tensor.detach().cpu().clone()) for each in tensors)
