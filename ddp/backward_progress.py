"""Where a reducer stands between a forward and the end of its backward: the states and the one transition function."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Stage(Enum):
    """What the next gradient means."""

    IDLE = "idle"
    """No forward through the wrapper waits for its backward: a gradient bypasses it."""
    LOCAL = "local"
    """The last forward ran under no_sync: gradients are kept, not reduced."""
    EXPECTING = "expecting"
    """A forward has announced gradients; none has come yet."""
    REDUCING = "reducing"
    """Gradients are coming, and buckets are reduced as they fill."""


class Event(Enum):
    """What moves a reducer on."""

    FORWARD = "forward"
    LOCAL_FORWARD = "local forward"
    GRADIENT = "gradient"
    ALL_REDUCED = "all reduced"
    GIVEN_UP = "given up"


_NEXT: dict[tuple[Stage, Event], Stage] = {
    (Stage.IDLE, Event.FORWARD): Stage.EXPECTING,
    (Stage.IDLE, Event.LOCAL_FORWARD): Stage.LOCAL,
    (Stage.LOCAL, Event.FORWARD): Stage.EXPECTING,
    (Stage.LOCAL, Event.LOCAL_FORWARD): Stage.LOCAL,
    (Stage.EXPECTING, Event.FORWARD): Stage.EXPECTING,
    (Stage.EXPECTING, Event.GRADIENT): Stage.REDUCING,
    (Stage.REDUCING, Event.ALL_REDUCED): Stage.IDLE,
    **{(stage, Event.GIVEN_UP): Stage.IDLE for stage in Stage},
}


def follows(stage: Stage, event: Event) -> Stage | None:
    """The stage after `event`, or None where it must not happen, as a forward while reducing.

    Only a backward's first gradient is an event, and only one that was announced.
    """
    return _NEXT.get((stage, event))


class Graph(Enum):
    """What is known about the graph of a forward."""

    ALL_USED = "all used"
    """Every parameter gets a gradient in every backward."""
    SEARCHED = "searched"
    """The graph is walked from the outputs: `find_unused_parameters`."""
    STATIC = "static"
    """The first backward shows how often each parameter gets a gradient, and it stays so: `static_graph`."""


class StaticGraph:
    """Counts gradients by parameter: in the first backward to learn, later to know which gradient is the last one.

    A parameter may get several in one backward when a reentrant checkpoint that holds it runs more than once.
    """

    __slots__ = ("_left", "times", "unused_everywhere")

    def __init__(self) -> None:
        self.times: dict[int, int] | None = None
        """Gradients per backward, by parameter, in the order of their first coming; None until one was learned."""
        self.unused_everywhere: frozenset[int] | None = None
        """Parameters that get no gradient on any rank, once the ranks have asked each other."""
        self._left: dict[int, int] = {}

    @property
    def is_learned(self) -> bool:
        """Whether the first backward is over."""
        return self.times is not None

    @property
    def came(self) -> frozenset[int]:
        """Parameters that have got a gradient in the backward that is being learned."""
        return frozenset(self._left) if self.times is None else frozenset()

    def begin(self) -> None:
        """A backward begins."""
        self._left = {} if self.times is None else dict(self.times)

    def is_last(self, index: int) -> bool:
        """Count a gradient; return whether it is the parameter's last in this backward, as far as is known."""
        if self.times is None:
            self._left[index] = self._left.get(index, 0) + 1
            return False
        left = self._left.get(index, 0) - 1
        self._left[index] = left
        return left <= 0

    def learn(self) -> tuple[int, ...]:
        """The first backward is over; return the parameters that got gradients, in the order of their first coming."""
        self.times = self._left
        return tuple(self.times)

    def times_by_index(self, count: int) -> tuple[int, ...]:
        """Gradients per backward for each of `count` parameters."""
        times = self.times or {}
        return tuple(times.get(index, 0) for index in range(count))

    def adopt(self, times: Iterable[int], unused_everywhere: Iterable[int]) -> None:
        """Take over what another rank learned: the parameters unused on all ranks; and its times by index, if none were
        learned here, as ranks may use different parameters."""
        if self.times is None:
            self.times = {index: count for index, count in enumerate(times) if count}
        self.unused_everywhere = frozenset(unused_everywhere)


class StepCounter:
    """Counts the synchronizing forwards of one wrapper."""

    __slots__ = ("_is_uncounted", "_reduced", "aligned", "latest")

    def __init__(self) -> None:
        self.latest = 0
        """The number of the latest forward that counts."""
        self.aligned = 0
        """The step at which a join ended last, on all ranks."""
        self._is_uncounted = False
        """The latest forward counts only once a backward follows."""
        self._reduced = 0
        """The step whose gradients were reduced last."""

    def begin_forward(self, *, is_training: bool) -> None:
        """A synchronizing forward begins."""
        self.latest += is_training
        self._is_uncounted = not is_training

    def begin_backward(self) -> None:
        """Gradients come that are to be reduced."""
        self.latest += self._is_uncounted
        self._is_uncounted = False

    def end_backward(self) -> None:
        """They are reduced."""
        self._reduced = self.latest

    def align(self, step: int) -> None:
        """A join ended: all ranks go on from the step of the last to join."""
        self.latest = self.aligned = self._reduced = step
        self._is_uncounted = False

    def forget_unreduced(self) -> None:
        """A join ended by an error: forwards that came to nothing do not count, as joined ranks made none of them."""
        self.latest = self._reduced
        self._is_uncounted = False
