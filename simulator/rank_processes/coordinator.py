"""The coordinator: runs the rank processes in the order that the kernel chooses.

One rank has the baton, the right to run, and its messages are handled. Messages of other ranks wait in their inboxes
until those ranks have the baton. `speculation.py` decides which ranks may compute before that.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.diagnosis.rank_errors import LOST
from ddpsim.simulator.errors import is_internal
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import (
    GO_ON,
    UNWIND,
    Answer,
    Deliver,
    GoOn,
    LookOutside,
    Move,
    Switch,
    TellStack,
)
from ddpsim.simulator.kernel.requests import (
    Delivered,
    Finish,
    Issue,
    Looked,
    Raised,
    RankError,
    Request,
)
from ddpsim.simulator.kernel.states import Change, Ending, Phase, State
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.children import Child
from ddpsim.simulator.rank_processes.debugger_desk import DebuggerDesk
from ddpsim.simulator.rank_processes.inbox import Entry, Inbox, Known, MoveData, PostedCalls
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.speculation import Speculation
from ddpsim.simulator.rank_processes.watchdog import Watchdog

_DELIVERED = Delivered()

_WATCH_SECONDS = 0.05

_LAST_WORD_SECONDS = 30.0
"""The time that a rank has to pickle the result of its program."""


class Coordinator:
    """Runs one execution."""

    def __init__(
        self,
        kernel: Kernel,
        children: Sequence[Child],
        config: ProcessConfig,
        *,
        move_data: MoveData,
        ctrl_c: CtrlC,
        director: Director | None,
    ) -> None:
        """`director` controls a run that is debugged from its beginning."""
        self.raisers: list[int] = []
        """The ranks that raised, in the order in which they did."""
        self._kernel = kernel
        self._children = children
        self._watchdog = Watchdog(kernel)
        self.lost: dict[int, str] = {}
        """How the processes ended that sent no last message, by rank."""
        self._are_programs = config.is_program
        """A rank that ends its process with status 0 has succeeded, as under torchrun."""
        self._left: set[int] = set()
        """Ranks whose programs have ended by os._exit(0)."""
        self._ctrl_c = ctrl_c
        self._presses = 0
        """The number of times that Ctrl-C has been handled."""
        self._inboxes = [Inbox(child) for child in children]
        self._desk = DebuggerDesk(kernel, self._inboxes, clock=self._watchdog.clock, ctrl_c=ctrl_c, director=director)
        self._posted = PostedCalls(self._inboxes, move_data)
        self._speculation = Speculation(kernel, is_allowed=config.is_speculative)
        self._by_file = {inbox.child.channel.fileno(): inbox for inbox in self._inboxes}
        self._poll = select.poll()
        for file in self._by_file:
            self._poll.register(file, select.POLLIN)

    def run(self) -> None:
        """Run the execution to its end."""
        for inbox in self._inboxes:
            self._speculation.let_go_on(inbox)
        answer: Answer | None = self._switch(self._kernel.start())
        while answer is not None:
            answer = self._carry_out(answer)

    def _carry_out(self, answer: Answer) -> Answer | None:
        """Carry out an answer of the kernel; return the next one, or None once all ranks have ended."""
        if isinstance(answer, Switch):
            return self._switch(answer.to)
        if isinstance(answer, Move):
            return self._move(answer)
        if isinstance(answer, LookOutside):
            return self._kernel.reply(Looked(woke_somebody=False))
        mine = self._mine
        if isinstance(answer, Deliver) and not (
            answer.handle in mine.completions.watched or self._me.rank.has_started_threads
        ):
            mine.completions.postpone(answer.handle)
            return self._kernel.reply(_DELIVERED)
        if isinstance(answer, TellStack) and mine.handled is not None and mine.handled.is_answered:
            return self._kernel.reply(mine.child.stack())
        self._let_go_on(answer)
        return self._serve()

    def _switch(self, number: int | None) -> Answer | None:
        giver = self._kernel.run.running
        self._kernel.give_baton(number)
        if giver is not None and not giver.rank.main.is_finished:
            self._leave_behind(self._inboxes[giver.rank_number])
        return None if number is None else self._kernel.resume(self._kernel.run.tasks[number])

    def _leave_behind(self, inbox: Inbox) -> None:
        """Handle a rank that does not have the right to run: it may compute ahead, or its process may be gone."""
        running = self._kernel.run.running
        if running is not None and running.rank_number == inbox.child.rank:
            return
        if inbox.is_lost:
            self._lose(inbox)
        else:
            self._speculation.let_go_on(inbox)

    def _let_go_on(self, answer: Answer, error: Exception | None = None) -> None:
        """Send an answer, or an error of the kernel, to the running rank, unless the rank has been answered already."""
        mine = self._mine
        entry, mine.handled = mine.handled, None
        if entry is None or not entry.is_answered:
            message = None if entry is None else entry.message
            by_turns = self._me.rank.has_started_threads
            known = () if error is not None else mine.completions.brought_by(answer, message, by_turns=by_turns)
            mine.answer(self._turn(answer, known, error))
        elif not isinstance(answer, GoOn):
            mine.ran_too_far = True

    def _turn(self, answer: Answer, known: Known = (), error: Exception | None = None) -> messages.Turn:
        run, me = self._kernel.run, self._me
        record = me.rank
        states = tuple([(task.number, task.state) for task in record.tasks]) if record.has_started_threads else ()
        return messages.Turn(me.number, answer, run.steps, run.life.phase is not Phase.RUNNING, states, known, error)

    def _move(self, move: Move) -> Answer:
        answer = self._kernel.reply(self._posted.move(move))
        for rank, _ in move.calls:
            if rank != self._me.rank_number:
                self._speculation.let_go_on(self._inboxes[rank])
        return answer

    @property
    def _me(self) -> Task:
        me = self._kernel.run.running
        assert me is not None, "no task has the baton"
        return me

    @property
    def _mine(self) -> Inbox:
        return self._inboxes[self._me.rank_number]

    def _serve(self) -> Answer:
        """Wait for messages of the running task, and handle them until the kernel gives an answer."""
        while True:
            mine = self._mine
            entry = self._next_entry(mine)
            if entry is None:
                answer = self._lose(mine)
            elif mine.ran_too_far:
                answer = self._rewind(mine, entry)
            else:
                answer = self._hear(mine, entry)
            if answer is not None:
                return answer

    def _hear(self, mine: Inbox, entry: Entry) -> Answer | None:
        """Handle a message; return None if the task has another one to send."""
        message = entry.message
        if isinstance(message, messages.Ask):
            mine.handled = entry
            return self._ask(message.request)
        if isinstance(message, messages.Say):
            mine.handled = entry
            return self._kernel.reply(message.reply)
        if isinstance(message, messages.Tell):
            self._kernel.handle(message.request)
        elif isinstance(message, messages.Post):
            self._post(message)
        elif isinstance(message, messages.AwaitTurn):
            mine.answer(self._turn(GO_ON))
        elif isinstance(message, messages.CountTasks):
            mine.answer(self._kernel.run.started)
        elif isinstance(message, messages.Watch):
            mine.answer(messages.Seen(mine.completions.watch(message.handle)))
        elif isinstance(message, messages.GiveUpRequest):
            self._kernel.drop()
        elif isinstance(message, messages.Broke):
            self._break_off(message)
        return None

    def _rewind(self, mine: Inbox, entry: Entry) -> Answer | None:
        """Make a rank that has run too far leave its program, and drop the messages that it sent meanwhile."""
        message = entry.message
        if isinstance(message, messages.Broke):
            self._break_off(message)
        elif entry.is_answered:
            pass
        elif isinstance(message, messages.Ask) and isinstance(message.request, Finish):
            mine.ran_too_far, mine.handled = False, entry
            return self._finish(Finish(Change.UNWIND))
        elif isinstance(message, (messages.Ask, messages.Say, messages.AwaitTurn)):
            mine.ran_too_far = False
            if isinstance(message, messages.Say):
                self._kernel.drop()
            mine.answer(self._turn(UNWIND))
        elif isinstance(message, messages.CountTasks):
            mine.answer(0)
        elif isinstance(message, messages.Watch):
            mine.answer(messages.Seen(None))
        return None

    def _ask(self, request: Request) -> Answer:
        if isinstance(request, Finish):
            return self._finish(request)
        if isinstance(request, Raised):
            self.raisers.append(self._me.rank_number)
        try:
            return self._kernel.handle(request)
        except Exception as error:
            if is_internal(error):
                raise
            self._let_go_on(GO_ON, error)
            return self._serve()

    def _finish(self, request: Finish) -> Answer:
        rank = self._me.rank
        answer = self._kernel.handle(request)
        if rank.main.is_finished and len(rank.tasks) == 1:  # else its other threads have to leave first
            self._inboxes[rank.rank].handled = None
            self._inboxes[rank.rank].answer(messages.Turn(None, GO_ON, self._kernel.run.steps, is_stopping=True))
        return answer

    def _post(self, message: messages.Post) -> None:
        me = self._me
        self._posted.add(me.rank_number, message.handle, message.call, message.parcel)
        answer = self._kernel.handle(Issue(message.handle, message.call))
        while isinstance(answer, Move):
            answer = self._move(answer)
        # An answer other than GoOn is also the answer to the rank's next request.

    def _break_off(self, message: messages.Broke) -> None:
        life = self._kernel.run.life
        if message.is_bug and isinstance(message.error, Exception):
            life.break_off_by_bug(message.error, self._me.rank_number)
        else:
            life.break_off(message.error, self._me.rank_number)

    def _lose(self, inbox: Inbox) -> Answer | None:
        """Handle the loss of a rank's process; if the rank was running, the kernel's answer is for the next task."""
        child = inbox.child
        rank = self._kernel.run.ranks[child.rank]
        inbox.handled = None
        if rank.main.is_finished:
            return None
        if self._are_programs and child.has_exited_well():
            self._left.add(child.rank)
            return self._kernel.lose(rank, None)
        self.lost[child.rank] = child.how_it_ended()
        if self._kernel.run.life.phase is Phase.RUNNING:
            self.raisers.append(child.rank)
        return self._kernel.lose(rank, RankError(LOST, f"{LOST}: {self.lost[child.rank]}", child.exited_at))

    def _next_entry(self, mine: Inbox) -> Entry | None:
        """Return the next message of the running task's process; None if the process is gone."""
        since = self._watchdog.clock.now()
        while not mine.entries:
            if mine.is_gone:
                return None
            ready = self._poll.poll(_WATCH_SECONDS * 1000)
            self._heed_ctrl_c()
            if not ready:
                mine.forward_output()
                self._watchdog.look(self._me, mine.child, since)
            for file, _ in ready:
                self._read(self._by_file[file])
        entry = mine.entries.popleft()
        mine.forward_output(entry.written)
        return entry

    def _read(self, inbox: Inbox) -> None:
        inbox.read()
        self._desk.serve(inbox)
        if inbox.is_gone:
            self._poll.unregister(inbox.child.channel.fileno())
        self._leave_behind(inbox)

    def _heed_ctrl_c(self) -> None:
        """Unwind the ranks at the first Ctrl-C; kill them at the second one."""
        if self._ctrl_c.presses == self._presses:
            return
        self._presses = self._ctrl_c.presses
        self._kernel.stop(Ending.INTERRUPTED)
        if self._presses > 1:
            for child in self._children:
                child.kill()

    def collect(self) -> None:
        """Wait for the last message of each rank, and for the end of each process."""
        for inbox in self._inboxes:
            if inbox.child.ended is None and inbox.child.rank not in self.lost and inbox.child.rank not in self._left:
                self._await_last_word(inbox)
            inbox.child.leave()

    def _await_last_word(self, inbox: Inbox) -> None:
        child, end = inbox.child, time.monotonic() + _LAST_WORD_SECONDS
        while child.ended is None and not inbox.is_gone:
            if select.select([child.channel], [], [], _WATCH_SECONDS)[0]:
                inbox.read()
            elif time.monotonic() > end:
                child.kill()
            self._heed_ctrl_c()
        if child.ended is None:
            self.lost[child.rank] = f"{child.how_it_ended()} before it reported its result"
            has_returned = self._kernel.run.ranks[child.rank].main.state is State.RETURNED
            if has_returned and child.rank not in self.raisers:
                self.raisers.append(child.rank)

    def forward_output(self) -> None:
        """Copy all remaining output of the ranks to the caller's own streams."""
        for inbox in self._inboxes:
            inbox.forward_output()
