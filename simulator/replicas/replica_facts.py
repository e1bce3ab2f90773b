"""What ranks notice of replicas, as frozen values (`NoticedKind.REPLICA`); replica_judge.py takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddpsim.simulator.attribution.wrapper import WrapperKey
from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.replica_divergence import Moment
from ddpsim.simulator.replicas.replica_tensors import Named


class StepInputs(NamedTuple):
    """The inputs of one rank's optimizer step, as fingerprints; equal texts stand for equal tensors."""

    start: tuple[str, ...]
    """The parameters when the step's forward began."""
    gradients: tuple[str, ...]


class ReplicaSample(NamedTuple):
    """One replica, at a time when it should be equal to the others."""

    key: WrapperKey
    rank: int
    size: int
    """How many ranks have the wrapper."""
    moment: Moment
    tensors: Sequence[Named]
    site: Site | None
    """None once the program has returned: findings then name the line of the latest sample."""
    has_trained: bool
    """A training forward went through the wrapper."""
    inputs: StepInputs | None = None
    """If the moment is an optimizer step, and then the rest, too."""
    unreduced: str = ""
    """The first bucket that was not launched in the step."""
    is_late: bool = False
    """Gradients came when the reduction of the step was over."""
    unwaited: Call | None = None
    """A call of the user's that the rank had not waited for."""
    communicated: int = 0
    """How many elements the program of the rank has brought to calls of its own by now."""


class WrapperProgress(NamedTuple):
    """The progress of a wrapper on one rank."""

    key: WrapperKey
    rank: int
    step: int
    """Its latest synchronising forward."""
    aligned_step: int
    """The step at which join ended last."""
    is_joined: bool
    """Shadows the others because its rank ran out of input."""
    reduced: frozenset[str]
    """The names of the parameters in its buckets; empty if these are not known."""

    def is_reduced(self, parameter: str) -> bool:
        """False if the parameter is in none of its buckets."""
        return not self.reduced or parameter in self.reduced


class FinalParameters(NamedTuple):
    """The parameters of a rank's models when its program returned."""

    rank: int
    left: Sequence[tuple[WrapperKey, Sequence[Named]]]
    communicated: int


ReplicaFact = ReplicaSample | WrapperProgress | FinalParameters

NoticeReplica = Callable[[ReplicaFact], None]
"""Hands a fact over."""
