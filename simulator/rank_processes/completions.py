"""The results of a rank's completed calls, kept until the rank has received them.

Note [What an answer delivers]. A rank that speculates is answered before the kernel has reached its request, so the
results that an answer carries must not depend on when it is sent. If no future depends on a completion, the rank sees
it only in its tensors, which it may use again after the wait. So an answer to a wait carries what the rank waited for,
and all that was complete before that. An answer before a call carries nothing. Other answers are sent only while the
rank has the baton, and carry all that the kernel would have delivered by then. If a future that the program can see
depends on a completion, it is delivered where the kernel says, and until then the rank does not speculate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpsim.simulator.kernel.answers import Answer, Deliver, GoOn
from ddpsim.simulator.kernel.requests import (
    BeginCall,
    Block,
    Checkpoint,
    IsComplete,
    Poll,
    Sleep,
    StoreOperation,
    WaitFor,
)
from ddpsim.simulator.rank_processes.messages import Ask, Message, Outcome, Say

Known = tuple[tuple[int, Outcome], ...]
"""Results that an answer carries, by the handle of the call."""

_IN_TURN = (Poll, Sleep, IsComplete, Block, StoreOperation)
"""Requests that are answered only while the rank has the baton (the right to run), with results of calls."""

_ALSO_BEFORE = (BeginCall, Checkpoint, WaitFor)
"""Requests that may be answered before the rank has the baton."""


class Completions:
    """The results that one rank has not received yet."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        """The results that the rank has not received, by handle, in the order in which calls completed."""
        self._due: set[int] = set()
        """The handles of results that the kernel would have delivered by now."""
        self._watched: set[int] = set()
        """The handles of undelivered calls on which a future depends."""

    def add(self, handle: int, outcome: Outcome) -> None:
        """Record the result of a call that is complete."""
        self._outcomes[handle] = outcome

    def watch(self, handle: int) -> Outcome | None:
        """A future now depends on a call: return the call's result if the kernel has delivered it, else None."""
        if handle in self._due:
            self._due.remove(handle)
            return self._outcomes.pop(handle)
        self._watched.add(handle)
        return None

    @property
    def has_watched(self) -> bool:
        """True while a future depends on a call that is not delivered."""
        return bool(self._watched)

    def is_watched(self, handle: int) -> bool:
        """True if a future depends on this call and the call is not delivered."""
        return handle in self._watched

    def postpone(self, handle: int) -> None:
        """The kernel delivers a call: the rank gets the result with a later answer, unless it already has it."""
        if handle in self._outcomes:
            self._due.add(handle)

    def brought_by(self, answer: Answer, message: Message | None, *, by_turns: bool) -> Known:
        """Return the results that an answer to a message carries; `by_turns` means that the rank never speculates."""
        if isinstance(answer, Deliver):
            return self.deliver(answer.handle)
        if message is None or isinstance(message, Say):
            return self.all_due()
        request = message.request if isinstance(message, Ask) else None
        if isinstance(request, _IN_TURN):
            return self.all_due()
        if self._watched or by_turns:
            return self.all_due() if isinstance(request, _ALSO_BEFORE) else ()
        if not isinstance(request, WaitFor):
            return ()
        return self.up_to(request.handles) if isinstance(answer, GoOn) and answer.value else self.all_due()

    def deliver(self, handle: int) -> Known:
        """The kernel delivers a call: return the results that were due before, then the result of this call."""
        return (*self.all_due(), *self._taken([handle]))

    def all_due(self) -> Known:
        """Return the results that the kernel would have delivered by now."""
        return self._taken([handle for handle in self._outcomes if handle in self._due])

    def up_to(self, waited: Sequence[int]) -> Known:
        """Return the results that a rank waited for, and all that were complete before them."""
        known = list(self._outcomes)
        last = max((known.index(handle) for handle in waited if handle in self._outcomes), default=-1)
        return self._taken(known[: last + 1])

    def _taken(self, handles: Iterable[int]) -> Known:
        taken = []
        for handle in handles:
            self._due.discard(handle)
            self._watched.discard(handle)
            taken.append((handle, self._outcomes.pop(handle)))
        return tuple(taken)
