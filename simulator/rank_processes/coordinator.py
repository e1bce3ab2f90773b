"""The coordinator: lets the ranks, which are processes, go on as the kernel says, one at a time."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from ddpsim.simulator.calls import Call, Signature
from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.diagnosis.rank_errors import LOST
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import GO_ON, Answer, Deliver, LookOutside, Move, Switch
from ddpsim.simulator.kernel.requests import Finish, Issue, Looked, Moved, Raised, RankError, Returned
from ddpsim.simulator.kernel.states import Ending, Phase, State
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.process_group.call_hazards import CallHazards
from ddpsim.simulator.process_group.replica_judge import ReplicaJudge
from ddpsim.simulator.process_group.wrapper import WrapperKey
from ddpsim.simulator.rank_processes.children import Child
from ddpsim.simulator.rank_processes.messages import (
    Ask,
    Broke,
    Count,
    CountTasks,
    Ended,
    GiveUpRequest,
    LatestStep,
    Message,
    Outcome,
    Post,
    ReplicaMoved,
    ReplicaSeen,
    ReplicasLeft,
    Say,
    Turn,
)
from ddpsim.simulator.rank_processes.parcels import Parcel, left_over
from ddpsim.simulator.rank_processes.watchdog import Watchdog
from ddpsim.simulator.transport.payload import Payload

MoveData = Callable[[Signature, Sequence[Any], Sequence[int]], Exception | None]

_WATCH_SECONDS = 0.05

_LAST_WORD_SECONDS = 30.0
"""How long a rank may take to pack what its program returned."""


class Posted:
    """A call that a rank has made, as a transport sees it."""

    __slots__ = ("call", "parcel", "payload")

    def __init__(self, call: Call, parcel: Parcel) -> None:
        self.call = call
        self.parcel = parcel
        self.payload: Payload | None = None
        """While its data moves."""


class Coordinator:
    """Runs one execution."""

    def __init__(self, kernel: Kernel, children: Sequence[Child], *, move_data: MoveData, ctrl_c: CtrlC) -> None:
        self.hazards = CallHazards(len(children))
        self.raisers: list[int] = []
        """The ranks that raised, in the order in which they did."""
        self._kernel = kernel
        self._children = children
        self._move_data = move_data
        self._posted: dict[tuple[int, int], Posted] = {}
        """By rank and handle."""
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        """Of the calls that are complete, and not delivered."""
        self._steps: dict[tuple[str, int], int] = {}
        """The latest step of each wrapper, by the label of its group and its number there."""
        self._replicas: dict[WrapperKey, dict[int, ReplicaMoved]] = {}
        """Where each wrapper stands on each rank that has told."""
        self.judge = ReplicaJudge(lambda key: tuple(self._replicas.get(key, {}).values()))
        self._watchdog = Watchdog(kernel)
        self.lost: dict[int, str] = {}
        """How the processes of ranks ended that did not say so themselves."""
        self._ctrl_c = ctrl_c
        self._presses = 0
        """Of Ctrl-C, that were heeded."""
        self._by_file = {child.channel.fileno(): child for child in children}
        self._poll = select.poll()
        for file in self._by_file:
            self._poll.register(file, select.POLLIN)

    def run(self) -> None:
        """Run to the end."""
        answer: Answer | None = self._switch(self._kernel.start())
        while answer is not None:
            answer = self._carry_out(answer)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _carry_out(self, answer: Answer) -> Answer | None:
        """Do what an answer says; the next one, or None once all ranks have ended."""
        if isinstance(answer, Switch):
            return self._switch(answer.to)
        if isinstance(answer, Move):
            return self._kernel.reply(self._move(answer))
        if isinstance(answer, LookOutside):
            return self._kernel.reply(Looked(woke_somebody=False))
        self._let_go_on(answer)
        return self._serve()

    def _switch(self, number: int | None) -> Answer | None:
        self._kernel.give_baton(number)
        return None if number is None else self._kernel.resume(self._kernel.run.tasks[number])

    def _let_go_on(self, answer: Answer, error: Exception | None = None) -> None:
        run, me = self._kernel.run, self._me
        outcome = None
        if isinstance(answer, Deliver):
            outcome = self._outcomes.pop((me.rank_number, answer.handle))
        record = me.rank
        states = tuple([(task.number, task.state) for task in record.tasks]) if record.has_started_threads else ()
        is_stopping = run.life.phase is not Phase.RUNNING
        self._send(Turn(me.number, answer, run.steps, is_stopping, states, outcome, error))

    def _move(self, move: Move) -> Moved:
        posted = [self._posted.pop(name) for name in move.calls]
        calls = [each.call for each in posted]
        is_message = calls[0].peer is not None
        if not is_message:
            self.hazards.slot_filled(calls)
        for (rank, _), each in zip(move.calls, posted, strict=True):
            each.payload = self._children[rank].arena.unpack(each.parcel)
        error = self._move_data(move.signature, posted, move.members)
        for name, each in zip(move.calls, posted, strict=True):
            assert each.payload is not None
            self._outcomes[name] = Outcome(
                error and copy(error),
                calls[0].rank if is_message else None,
                move.members if is_message else (),
                left_over(each.payload),
            )
        return Moved(None if error is None else str(error))

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def _me(self) -> Task:
        me = self._kernel.run.running
        assert me is not None, "nobody has the baton"
        return me

    @property
    def _child(self) -> Child:
        return self._children[self._me.rank_number]

    def _send(self, value: object) -> None:
        with suppress(OSError):  # it is gone, as we shall see where we wait for what it says
            self._child.channel.send(value)

    def _serve(self) -> Answer:
        """Wait for what the running task says, and serve it."""
        while True:
            message = self._receive()
            if isinstance(message, Ask):
                return self._ask(message)
            if isinstance(message, Say):
                return self._kernel.reply(message.reply)
            if isinstance(message, Post):
                self._post(message)
            elif isinstance(message, CountTasks):
                self._send(Count(self._kernel.run.started))
            elif isinstance(message, LatestStep):
                self._send(Count(self._steps.get((message.group, message.wrapper), 0)))
            elif isinstance(message, (ReplicaMoved, ReplicaSeen, ReplicasLeft)):
                self._judge(message)
            elif isinstance(message, GiveUpRequest):
                self._kernel.drop()
            elif isinstance(message, Broke):
                self._break_off(message)
            else:
                answer = self._lose(self._child)
                assert answer is not None, "it was running"
                return answer

    def _ask(self, message: Ask) -> Answer:
        request, me = message.request, self._me
        if isinstance(request, Finish):
            return self._finish(request)
        if isinstance(request, Raised):
            self.raisers.append(me.rank_number)
        elif isinstance(request, Returned):
            self.hazards.rank_ended()
        try:
            return self._kernel.handle(request)
        except Exception as error:
            self._let_go_on(GO_ON, error)
            return self._serve()

    def _finish(self, request: Finish) -> Answer:
        rank = self._me.rank
        answer = self._kernel.handle(request)
        if rank.main.is_finished and len(rank.tasks) == 1:  # else there are threads of it to be unwound
            self._send(Turn(None, GO_ON, self._kernel.run.steps, is_stopping=True))
        return answer

    def _post(self, message: Post) -> None:
        me, (group, origin) = self._me, (message.call.group, message.call.origin)
        if origin.wrapper is not None and origin.step is not None:
            wrapper = group, origin.wrapper
            self._steps[wrapper] = max(origin.step, self._steps.get(wrapper, 0))
        self._posted[me.rank_number, message.handle] = Posted(message.call, message.parcel)
        self.hazards.issued.append((message.call, me.number))
        answer = self._kernel.handle(Issue(message.handle, message.call))
        while isinstance(answer, Move):
            answer = self._kernel.reply(self._move(answer))
        # Anything else than GoOn its next request is answered by, too.

    def _judge(self, message: ReplicaMoved | ReplicaSeen | ReplicasLeft) -> None:
        if isinstance(message, ReplicaMoved):
            self._replicas.setdefault(message.key, {})[message.rank] = message
        elif isinstance(message, ReplicaSeen):
            self.judge.look(message.look)
        else:
            self.judge.returned(message.rank, message.left)

    def _break_off(self, message: Broke) -> None:
        life = self._kernel.run.life
        if message.is_bug and isinstance(message.error, Exception):
            life.break_off_by_bug(message.error, self._me.rank_number)
        else:
            life.break_off(message.error, self._me.rank_number)

    def _lose(self, child: Child) -> Answer | None:
        """The process of a rank is gone; the answer is for whoever comes after it, if it was running."""
        self._poll.unregister(child.channel.fileno())
        rank = self._kernel.run.ranks[child.rank]
        if rank.main.is_finished:
            return None
        self.lost[child.rank] = child.how_it_ended()
        if self._kernel.run.life.phase is Phase.RUNNING:
            self.raisers.append(child.rank)
        return self._kernel.lose(rank, RankError(LOST, f"{LOST}: {self.lost[child.rank]}", None))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _receive(self) -> Message | None:
        """What the running task's process says; None if it is gone."""
        child = self._child
        since = time.monotonic()
        while (message := child.channel.take()) is None:
            ready = self._poll.poll(_WATCH_SECONDS * 1000)
            self._heed_ctrl_c()
            if not ready:
                self._forward(child)
                self._watchdog.look(self._me, child, since)
            for file, _ in ready:
                speaker = self._by_file[file]
                try:
                    speaker.channel.read()
                except EOFError:
                    if speaker is child:
                        return None
                    self._lose(speaker)
                else:
                    if speaker is not child:
                        self._hear(speaker)
        self._forward(child)
        return message  # type: ignore[no-any-return]

    def _hear(self, child: Child) -> None:
        """A rank that is over says one thing more."""
        if (message := child.channel.take()) is not None:
            assert isinstance(message, Ended), f"rank {child.rank} says {message} out of turn"
            child.ended = message

    def _heed_ctrl_c(self) -> None:
        """At the first one the ranks are unwound; at the second one they are killed."""
        if self._ctrl_c.presses == self._presses:
            return
        self._presses = self._ctrl_c.presses
        self._kernel.stop(Ending.INTERRUPTED)
        if self._presses > 1:
            for child in self._children:
                child.kill()

    def _forward(self, child: Child) -> None:
        """Let the caller's own streams have what the rank has written to its."""
        for stream, text in zip((sys.stdout, sys.stderr), child.new_output(), strict=True):
            if text and not stream.closed:
                encoding = stream.encoding or "utf-8"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()

    def collect(self) -> None:
        """Wait for the last words of all ranks, and for the ends of their processes."""
        for child in self._children:
            if child.ended is None and child.rank not in self.lost:
                self._await_last_word(child)
            child.leave()

    def _await_last_word(self, child: Child) -> None:
        end = time.monotonic() + _LAST_WORD_SECONDS
        try:
            while (message := child.channel.take()) is None:
                if select.select([child.channel], [], [], _WATCH_SECONDS)[0]:
                    child.channel.read()
                elif time.monotonic() > end:
                    child.kill()
                self._heed_ctrl_c()
        except (EOFError, OSError):
            self.lost[child.rank] = f"{child.how_it_ended()} before it could say what came of its program"
            has_returned = self._kernel.run.ranks[child.rank].main.state is State.RETURNED
            if has_returned and child.rank not in self.raisers:
                self.raisers.append(child.rank)
        else:
            child.ended = message

    def forward_output(self) -> None:
        """Let the caller's own streams have all that is left of what the ranks have written."""
        for child in self._children:
            self._forward(child)
