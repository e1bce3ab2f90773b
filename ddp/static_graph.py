"""What `static_graph` learns in the first backward: how often each parameter gets a gradient, and which get none."""

from __future__ import annotations

from collections.abc import Iterable


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
