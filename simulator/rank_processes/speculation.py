"""Speculation: decides which ranks may compute before they have the baton, the right to run.

Ranks share no memory, so what a rank does up to its next request depends only on the answer to its last one. If that
answer is certain before the kernel serves the request, the coordinator sends it at once, and the rank computes in
parallel with the others. The kernel still serves the requests in the order of the policy, and gives each the same
answer. If the run stops in between, the rank ran too far: its later messages are dropped, and it has to end.

Three answers are certain: to a rank that begins, to one that is about to make a call, and to one that waits for calls
that are complete.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import GO_ON, IN_TIME, Answer
from ddpsim.simulator.kernel.requests import BeginCall, Checkpoint, WaitFor
from ddpsim.simulator.kernel.states import RunPhase
from ddpsim.simulator.rank_processes.inbox import Known, RankInbox
from ddpsim.simulator.rank_processes.messages import SendRequest, TurnToRun

_MOST_UNHANDLED = 1_000
"""The most messages of one rank that may wait to be handled."""

_STEPS_LEFT = 10_000
"""Ranks do not compute ahead when this few steps are left to the step limit, because the run may stop before."""


class Speculation:
    """For one execution: lets ranks compute ahead, by sending answers early that are certain."""

    def __init__(self, kernel: Kernel, *, is_allowed: bool) -> None:
        self._run = kernel.run
        self._is_allowed = is_allowed

    def answer_if_certain(self, inbox: RankInbox) -> None:
        """Send a waiting rank its answer early, if it is certain what the kernel (the scheduler) will answer."""
        entry = inbox.unanswered_message()
        if entry is None or not self._may_speculate(inbox):
            return
        turn = self._certain_answer(inbox, entry.message)
        if turn is not None:
            entry.is_answered = True
            inbox.send_to_rank(turn)

    def _may_speculate(self, inbox: RankInbox) -> bool:
        run = self._run
        return (
            self._is_allowed
            and run.life.phase is RunPhase.RUNNING
            and not run.ranks[inbox.child.rank].has_started_threads  # threads have to take turns, too
            and not inbox.completions.watched
            and not inbox.is_gone
            and len(inbox.entries) < _MOST_UNHANDLED
            and run.steps + _STEPS_LEFT < run.budget.steps
        )

    def _certain_answer(self, inbox: RankInbox, message: NamedTuple | None) -> TurnToRun | None:
        answer: Answer = GO_ON
        known: Known = ()
        request = message.request if isinstance(message, SendRequest) else None
        if isinstance(request, WaitFor):
            still_open = self._run.ranks[inbox.child.rank].open
            if any(handle > inbox.last_posted or handle in still_open for handle in request.handles):
                return None
            answer, known = IN_TIME, inbox.completions.take_results_up_to(request.handles)
        elif message is not None and not isinstance(request, (BeginCall, Checkpoint)):
            return None
        rank, steps, now = inbox.child.rank, self._run.steps, self._run.clock.now
        return TurnToRun(rank, answer, steps, is_stopping=False, outcomes=known, is_speculative=True, now=now)
