"""What came of the calls of a rank, until the rank knows of it.

Note [What an answer delivers]. A rank that speculates is answered before the kernel has got to its request, so what an
answer brings must not depend on when it is given. A completion on which nothing hangs is seen by the rank only in its
tensors, which are its own again after the wait. So an answer to a wait brings what the rank waited for, with what was
complete before that; one before a call brings nothing; and others, which are only ever given in the rank's turn, bring
all that the kernel would have delivered by then. A completion on which a future hangs, that the program can see, is
delivered where the kernel says, and as long as there is one the rank does not run ahead.
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
"""What a rank is told, by handle."""

_IN_TURN = (Poll, Sleep, IsComplete, Block, StoreOperation)
"""Requests that are only ever answered in the rank's turn, by an answer that brings completions."""

_ALSO_BEFORE = (BeginCall, Checkpoint, WaitFor)
"""Those that may be answered before."""


class Completions:
    """Of one rank."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        """Those that the rank does not know, by handle, in the order in which calls met."""
        self._due: set[int] = set()
        """Those that the kernel would have delivered by now. Only asked about."""
        self._watched: set[int] = set()
        """The calls on which something hangs, until they are delivered. Only asked about."""

    def add(self, handle: int, outcome: Outcome) -> None:
        """A call is complete."""
        self._outcomes[handle] = outcome

    def watch(self, handle: int) -> Outcome | None:
        """Something hangs on a call from here on: what came of it if its rank should know."""
        if handle in self._due:
            self._due.remove(handle)
            return self._outcomes.pop(handle)
        self._watched.add(handle)
        return None

    @property
    def has_watched(self) -> bool:
        """True while something hangs on a call that is not delivered."""
        return bool(self._watched)

    def is_watched(self, handle: int) -> bool:
        """True if something hangs on a call, which is not delivered."""
        return handle in self._watched

    def postpone(self, handle: int) -> None:
        """The kernel delivers a call: its rank is told with the next answer that brings it, unless it has been."""
        if handle in self._outcomes:
            self._due.add(handle)

    def brought_by(self, answer: Answer, message: Message | None, *, by_turns: bool) -> Known:
        """What an answer to a message brings; `by_turns`: the rank never speculates."""
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
        """The kernel delivers a call, and its rank is told now: of what was due before, and of this call last."""
        return (*self.all_due(), *self._taken([handle]))

    def all_due(self) -> Known:
        """What the kernel would have delivered by now."""
        return self._taken([handle for handle in self._outcomes if handle in self._due])

    def up_to(self, waited: Sequence[int]) -> Known:
        """What a rank waited for, and all that was complete before that."""
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
