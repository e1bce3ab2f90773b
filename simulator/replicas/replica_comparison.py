"""Compares the replicas of all ranks at one point in time: which ranks agree, and where replicas differ first."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.model_tensors import are_equal
from ddpsim.simulator.replicas.replica_tensors import ReplicaSample, ReplicaTensor

_MOST_SIDES = 8
"""The most groups of agreeing ranks that are kept apart; further ranks join the last group."""


class AgreeingRanks:
    """Ranks whose replicas are equal, and one copy of the replica's tensors."""

    __slots__ = ("ranks", "tensors")

    def __init__(self, rank: int, tensors: Sequence[ReplicaTensor]) -> None:
        self.ranks = [rank]
        self.tensors = {each.name: each._replace(tensor=each.tensor.detach().clone()) for each in tensors}


@dataclass(slots=True)
class ReplicaComparison:
    """The replicas of all ranks at one point in time."""

    groups: list[AgreeingRanks] = field(default_factory=list)
    sites: dict[int, Site] = field(default_factory=dict)
    """The current program line of each rank."""
    steps: list[ReplicaSample] = field(default_factory=list)
    """The samples of the ranks, without tensors, if the replicas are compared after an optimizer step."""
    communicated: int = 0
    """The largest number of elements that any rank's program had passed to its own calls."""

    @property
    def compared_ranks(self) -> Collection[int]:
        """The ranks whose replicas have been added."""
        return self.sites.keys()

    @property
    def first_different_input(self) -> Advice[[]]:
        """The cause of a difference, by the differing input of the optimizer step: parameters, gradients or neither."""
        inputs = [each.inputs for each in self.steps if each.inputs is not None]
        if len({each.start for each in inputs}) > 1:
            return Cause.STARTED_APART
        if len({each.gradients for each in inputs}) > 1:
            return next((each.unreduced_by for each in self.steps if each.unreduced_by), Cause.GRADIENTS_CHANGED)
        return Cause.OPTIMIZER_DIFFERS

    def add_rank(
        self,
        rank: int,
        tensors: Sequence[ReplicaTensor],
        *,
        site: Site,
        communicated: int = 0,
        in_any_order: bool = False,
    ) -> None:
        """Add a rank to those with an equal replica, or as a new group; `in_any_order`: tensor order may differ."""
        self.sites[rank] = site
        self.communicated = max(self.communicated, communicated)
        for group in self.groups:
            is_equal = first_different_tensor(group.tensors, tensors) is None
            if is_equal or (in_any_order and _has_same_tensors(group.tensors, tensors)):
                group.ranks.append(rank)
                return
        if len(self.groups) < _MOST_SIDES:
            self.groups.append(AgreeingRanks(rank, tensors))
        else:
            self.groups[-1].ranks.append(rank)


def first_different_tensor(first: dict[str, ReplicaTensor], second: Sequence[ReplicaTensor]) -> ReplicaTensor | None:
    """Return the first tensor in which two replicas differ in name, position or value; None if they are equal."""
    names = [name for name, each in first.items() if not each.is_optional]
    others = [each for each in second if not each.is_optional]
    for name, other in zip(names, others, strict=False):
        if name != other.name:
            return first[name]
    if len(names) != len(others):
        return first[names[len(others)]] if len(names) > len(others) else others[len(names)]
    for each in second:
        mine = first.get(each.name)
        if mine is not None and not are_equal(mine.tensor, each.tensor):
            return each
    return None


def _has_same_tensors(first: dict[str, ReplicaTensor], second: Sequence[ReplicaTensor]) -> bool:
    """Return whether two replicas have equal tensors, in any order and under any names."""
    left = list(second)
    for mine in first.values():
        index = next((i for i, each in enumerate(left) if are_equal(mine.tensor, each.tensor)), None)
        if index is None:
            return False
        del left[index]
    return not left


def count_differing_elements(first: dict[str, ReplicaTensor], second: dict[str, ReplicaTensor]) -> int:
    """Count the elements of parameters that differ between the replicas."""
    both = [(first[name].tensor, each.tensor) for name, each in second.items() if name in first and not each.is_state]
    return sum(mine.numel() for mine, other in both if not are_equal(mine, other))


def first_different_position(names: Sequence[Sequence[str]]) -> int | None:
    """Return the first position at which two lists of tensor names differ."""
    longest = max(len(own) for own in names)
    return next((i for i in range(longest) if len({own[i] if i < len(own) else None for own in names}) > 1), None)


def element_text(named: ReplicaTensor | None, index: tuple[int, ...]) -> str:
    """Return one element of a tensor as text; the whole tensor if no index is given."""
    if named is None:
        return "nothing of this name"
    tensor = named.tensor
    if len(index) != tensor.dim():
        return f"a tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    value = tensor[index].item()
    return f"{value:.9g}" if isinstance(value, float) else repr(value)
