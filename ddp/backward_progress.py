"""A reducer's progress, without tensors: its stage, its step number, and what it learned of a static graph."""

import sys
from collections.abc import Iterable
from enum import Enum


class ReductionStage(Enum):
    """What a reducer is doing, between a forward and the end of its backward."""

    IDLE = "idle"
    """No forward through the wrapped model waits for its backward, so a gradient is an error."""
    LOCAL = "local"
    """The last forward ran under no_sync: gradients are kept, not reduced."""
    EXPECTING = "expecting"
    """A forward has announced gradients; none has been computed yet."""
    REDUCING = "reducing"
    """Gradients are computed, and buckets are reduced as they fill."""


class ReductionEvent(Enum):
    """An event of training that changes the reducer's stage."""

    FORWARD = "forward"
    LOCAL_FORWARD = "local forward"
    GRADIENT = "gradient"
    ALL_REDUCED = "all reduced"
    GIVEN_UP = "given up"


_NEXT: dict[tuple[ReductionStage, ReductionEvent], ReductionStage] = {
    (ReductionStage.IDLE, ReductionEvent.FORWARD): ReductionStage.EXPECTING,
    (ReductionStage.IDLE, ReductionEvent.LOCAL_FORWARD): ReductionStage.LOCAL,
    (ReductionStage.LOCAL, ReductionEvent.FORWARD): ReductionStage.EXPECTING,
    (ReductionStage.LOCAL, ReductionEvent.LOCAL_FORWARD): ReductionStage.LOCAL,
    (ReductionStage.EXPECTING, ReductionEvent.FORWARD): ReductionStage.EXPECTING,
    (ReductionStage.EXPECTING, ReductionEvent.GRADIENT): ReductionStage.REDUCING,
    (ReductionStage.REDUCING, ReductionEvent.ALL_REDUCED): ReductionStage.IDLE,
    **{(stage, ReductionEvent.GIVEN_UP): ReductionStage.IDLE for stage in ReductionStage},
}


def next_stage(stage: ReductionStage, event: ReductionEvent) -> ReductionStage | None:
    """Return the reducer's stage after `event`; None if the event is not allowed in this stage."""
    return _NEXT.get((stage, event))


class GraphKnowledge(Enum):
    """How the reducer knows which parameters get a gradient in a backward."""

    ALL_USED = "all used"
    """Every parameter gets a gradient in every backward."""
    SEARCHED = "searched"
    """A search of the autograd graph, from the forward's outputs, shows it (`find_unused_parameters`)."""
    STATIC = "static"
    """The first backward shows how many gradients each parameter gets; later ones are equal (`static_graph`)."""


class StaticGraph:
    """Counts gradients by parameter: in the first backward to learn, later to recognize the last gradient."""

    def __init__(self) -> None:
        self.times: dict[int, int] | None = None
        """Each parameter's number of gradients per backward, in order of first ones; None until it is learned."""
        self.unused_everywhere: frozenset[int] | None = None
        """Parameters that get no gradient on any rank; None until the ranks have exchanged this."""
        self._left: dict[int, int] = {}

    @property
    def is_learned(self) -> bool:
        """Whether the first backward has ended, so that the gradient counts are known."""
        return self.times is not None

    @property
    def parameters_with_gradient(self) -> frozenset[int]:
        """The parameters that have got a gradient so far in the first backward."""
        return frozenset(self._left) if self.times is None else frozenset()

    def begin_backward(self) -> None:
        """Record that a backward begins."""
        self._left = {} if self.times is None else dict(self.times)

    def count_gradient(self, index: int) -> bool:
        """Count a gradient; return True if it is known to be the parameter's last gradient in this backward."""
        if self.times is None:
            self._left[index] = self._left.get(index, 0) + 1
            return False
        left = self._left.get(index, 0) - 1
        self._left[index] = left
        return left <= 0

    def end_first_backward(self) -> tuple[int, ...]:
        """Record the end of the first backward; return the parameters with gradients, in order of first ones."""
        self.times = self._left
        return tuple(self.times)

    def gradient_counts(self, count: int) -> tuple[int, ...]:
        """Return the number of gradients per backward for each of `count` parameters."""
        times = self.times or {}
        return tuple(times.get(index, 0) for index in range(count))

    def adopt_counts(self, times: Iterable[int], unused_everywhere: Iterable[int]) -> None:
        """Take over another rank's gradient counts; counts that this rank learned stay, since ranks may differ."""
        if self.times is None:
            self.times = {index: count for index, count in enumerate(times) if count}
        self.unused_everywhere = frozenset(unused_everywhere)


class StepCounter:
    """Counts the synchronizing forwards of one model; see Note [StepCounter] in simulator/attribution/wrapper.py."""

    def __init__(self) -> None:
        self.latest = 0
        """The number of the latest counted forward."""
        self.aligned = 0
        """The step at which the last join ended, on all ranks."""
        self._is_uncounted = self._is_unfinished = False
        self._reduced = 0
        self._handled = 0

    def begin_forward(self, *, is_training: bool) -> None:
        """Count a forward whose gradients will be reduced; in evaluation mode, count it when its backward begins.

        It takes the place of one that raised, and of one before the exception that is being handled.
        """
        before, error = self._handled, sys.exc_info()[1]
        self._handled = 0 if error is None else id(error)
        if self.latest > self._reduced and (self._is_unfinished or self._handled not in (0, before)):
            self.latest -= 1
        self.latest += is_training
        self._is_uncounted = not is_training
        self._is_unfinished = is_training

    def end_forward(self) -> None:
        """Record that the forward has not raised."""
        self._is_unfinished = False

    def begin_backward(self) -> None:
        """Record that the backward has computed its first gradient that will be reduced."""
        self.latest += self._is_uncounted
        self._is_uncounted = False

    def end_backward(self) -> None:
        """Record that the gradients of the backward are reduced."""
        self._reduced = self.latest

    def align_step(self, step: int) -> None:
        """After a join: continue on all ranks from the step of the last rank to join."""
        self.latest = self.aligned = self._reduced = step
        self._is_uncounted = False

    def drop_unreduced_steps(self) -> None:
        """After a failed join: subtract forwards with unreduced gradients, since joined ranks did not run them."""
        self.latest = self._reduced
        self._is_uncounted = False
