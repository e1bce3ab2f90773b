"""The coordinator: runs the rank processes in the order that the kernel chooses.

One rank has the baton, the right to run, and its messages are handled. Messages of other ranks wait in their inboxes
until those ranks have the baton. `speculation.py` decides which ranks may compute before that.
"""

import select
import time
from collections.abc import Sequence
from dataclasses import replace

from ddpsim.simulator.ctrl_c import CtrlCGuard
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.diagnosis.rank_errors import LOST
from ddpsim.simulator.errors import is_internal_error
from ddpsim.simulator.hosts import hosts_text
from ddpsim.simulator.kernel import Kernel, answers, requests
from ddpsim.simulator.kernel.answers import GO_ON, UNWIND, Answer
from ddpsim.simulator.kernel.requests import FinishTask, Request
from ddpsim.simulator.kernel.states import RunEnding, RunPhase, TaskChange, TaskState
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.channel import readable_files
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.debugger_desk import DebuggerServer
from ddpsim.simulator.rank_processes.inbox import Known, MoveData, PostedCalls, QueuedMessage, RankInbox
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.speculation import Speculation
from ddpsim.simulator.rank_processes.watchdog import RankWatchdog

_WATCH_SECONDS = 0.05

_LAST_WORD_SECONDS = 30.0
"""The seconds that a rank has to pickle the result of its program."""


_REST_SECONDS, _ALL_RESTS_SECONDS = 0.25, 60.0
"""The most real seconds of one advance of virtual time, and of all between two calls, while child processes run."""


class RankCoordinator:
    """Runs the ranks of one execution, each of which is a process."""

    def __init__(
        self,
        kernel: Kernel,
        children: Sequence[ChildProcess],
        config: ProcessConfig,
        *,
        move_data: MoveData,
        ctrl_c: CtrlCGuard,
        director: RunDirector | None,
    ) -> None:
        """`director` decides where a run under `ddpsim debug` pauses; None in other runs."""
        self.raisers: list[int] = []
        """The ranks that raised, in the order in which they did."""
        self._kernel = kernel
        self._children = children
        self._watchdog = RankWatchdog(kernel, [child.pid for child in children])
        self.lost: dict[int, str] = {}
        """How a rank's process ended that sent no last message, by rank."""
        self._may_exit_at_once = not config.makes_groups
        """True if ranks are programs: one that ends its process with status 0 has succeeded, as under torchrun."""
        self._rest = (-1, 0.0, 0.0)  # when a rank slept last: calls made, virtual time, seconds rested since a call
        self._left: set[int] = set()
        """Ranks whose programs have ended by os._exit(0)."""
        self._ctrl_c = ctrl_c
        self._presses = 0
        """The number of times that Ctrl-C has been handled."""
        self._inboxes = [RankInbox(child) for child in children]
        nodes = config.start.nodes
        hosts = hosts_text(config.world_size, nodes) if nodes > 1 else ""
        self._desk = DebuggerServer(
            kernel, self._inboxes, clock=self._watchdog.clock, ctrl_c=ctrl_c, director=director, hosts=hosts
        )
        self._posted = PostedCalls(self._inboxes, move_data)
        self._speculation = Speculation(kernel, is_allowed=config.is_speculative)
        self._by_file = {inbox.child.channel.fileno(): inbox for inbox in self._inboxes}
        self._poll = select.poll()
        for file in self._by_file:
            self._poll.register(file, select.POLLIN)

    def run_to_end(self) -> None:
        """Run the execution to its end."""
        for inbox in self._inboxes:
            self._speculation.answer_if_certain(inbox)
        answer: Answer | None = self._switch_task(self._kernel.first_task())
        while answer is not None:
            answer = self._carry_out_answer(answer)

    def _carry_out_answer(self, answer: Answer) -> Answer | None:
        """Carry out a decision of the kernel (the scheduler); return the next, or None once all ranks have ended."""
        if isinstance(answer, answers.SwitchTask):
            return self._switch_task(answer.to)
        if isinstance(answer, (answers.MoveTensors, answers.FailCalls)):
            return self._complete_calls(answer)
        if isinstance(answer, answers.AwaitExternalThreads):
            return self._kernel.reply(requests.AwaitedExternalThreads(woke_a_rank=False))
        mine = self._running_inbox
        if isinstance(answer, answers.DeliverCompletion) and not (
            answer.handle in mine.completions.watched or self._running_task.rank.has_started_threads
        ):
            mine.completions.postpone_delivery(answer.handle)
            return self._kernel.reply(requests.DeliveredCompletion())
        if isinstance(answer, answers.ReportStack) and mine.handled is not None and mine.handled.is_answered:
            return self._kernel.reply(mine.child.read_stack())
        self._answer_running_rank(answer)
        return self._serve_messages()

    def _switch_task(self, number: int | None) -> Answer | None:
        giver = self._kernel.run.running
        self._kernel.give_baton(number)
        if giver is not None and not giver.rank.main.is_finished:
            self._handle_waiting_rank(self._inboxes[giver.rank_number])
        return None if number is None else self._kernel.resume_task(self._kernel.run.tasks[number])

    def _handle_waiting_rank(self, inbox: RankInbox) -> None:
        """Handle a rank that does not have the right to run: it may compute ahead, or its process may be gone."""
        running = self._kernel.run.running
        if running is not None and running.rank_number == inbox.child.rank:
            return
        if inbox.is_lost:
            self._handle_lost_rank(inbox)
        else:
            self._speculation.answer_if_certain(inbox)

    def _answer_running_rank(self, answer: Answer, error: Exception | None = None) -> None:
        """Send an answer, or an error of the kernel, to the running rank, unless the rank has been answered already."""
        mine = self._running_inbox
        entry, mine.handled = mine.handled, None
        if entry is None or not entry.is_answered:
            message = None if entry is None else entry.message
            by_turns = self._running_task.rank.has_started_threads
            known = () if error is not None else mine.completions.take_for_answer(answer, message, by_turns=by_turns)
            mine.send_to_rank(self._make_turn(answer, known, error))
        elif not isinstance(answer, answers.Continue):
            mine.ran_too_far = True

    def _make_turn(self, answer: Answer, known: Known = (), error: Exception | None = None) -> messages.TurnToRun:
        run, me = self._kernel.run, self._running_task
        record = me.rank
        states = tuple([(task.number, task.state) for task in record.tasks]) if record.has_started_threads else ()
        is_stopping = run.life.phase is not RunPhase.RUNNING
        is_ended = run.life.ending is RunEnding.AGENT
        return messages.TurnToRun(
            me.number, answer, run.steps, is_stopping, states, known, error, now=run.clock.now, is_terminated=is_ended
        )

    def _complete_calls(self, completed: answers.MoveTensors | answers.FailCalls) -> Answer:
        answer = self._kernel.reply(self._posted.complete_calls(completed))
        for rank, _ in completed.calls:
            if rank != self._running_task.rank_number:
                self._speculation.answer_if_certain(self._inboxes[rank])
        return answer

    @property
    def _running_task(self) -> Task:
        me = self._kernel.run.running
        assert me is not None, "no task has the baton"
        return me

    @property
    def _running_inbox(self) -> RankInbox:
        return self._inboxes[self._running_task.rank_number]

    def _serve_messages(self) -> Answer:
        """Handle messages of the running task (a rank's program or thread) until the kernel (scheduler) answers one."""
        while True:
            mine = self._running_inbox
            entry = self._await_next_entry(mine)
            if entry is None:
                answer = self._handle_lost_rank(mine)
            elif mine.ran_too_far:
                answer = self._rewind_rank(mine, entry)
            else:
                answer = self._handle_message(mine, entry)
            if answer is not None:
                return answer

    def _handle_message(self, mine: RankInbox, entry: QueuedMessage) -> Answer | None:
        """Handle a message of a task; return the kernel's answer, or None if the task has another message to send."""
        message = entry.message
        if isinstance(message, messages.SendRequest):
            mine.handled = entry
            return self._handle_request(message.request)
        if isinstance(message, messages.SendReply):
            mine.handled = entry
            return self._kernel.reply(message.reply)
        if isinstance(message, messages.RequestWithoutReply):
            self._kernel.handle(message.request)
        elif isinstance(message, messages.IssueCallWithoutReply):
            self._post_call(message)
        elif isinstance(message, messages.AwaitTurn):
            mine.send_to_rank(self._make_turn(GO_ON))
        elif isinstance(message, messages.AskTaskNumber):
            mine.send_to_rank(self._kernel.run.started)
        elif isinstance(message, messages.WatchCall):
            mine.send_to_rank(messages.WatchedResult(mine.completions.watch_call(message.handle)))
        elif isinstance(message, messages.WithdrawRequest):
            self._kernel.drop_request()
        elif isinstance(message, messages.InternalFailure):
            self._stop_by_failure(message)
        return None

    def _rewind_rank(self, mine: RankInbox, entry: QueuedMessage) -> Answer | None:
        """Make a rank that has run too far leave its program, and drop the messages that it sent meanwhile."""
        message = entry.message
        if isinstance(message, messages.InternalFailure):
            self._stop_by_failure(message)
        elif entry.is_answered:
            pass
        elif isinstance(message, messages.SendRequest) and isinstance(message.request, FinishTask):
            mine.ran_too_far, mine.handled = False, entry
            return self._finish_task(FinishTask(TaskChange.UNWIND))
        elif isinstance(message, (messages.SendRequest, messages.SendReply, messages.AwaitTurn)):
            mine.ran_too_far = False
            if isinstance(message, messages.SendReply):
                self._kernel.drop_request()
            mine.send_to_rank(self._make_turn(UNWIND))
        elif isinstance(message, messages.AskTaskNumber):
            mine.send_to_rank(0)
        elif isinstance(message, messages.WatchCall):
            mine.send_to_rank(messages.WatchedResult(None))
        return None

    def _handle_request(self, request: Request) -> Answer:
        if isinstance(request, FinishTask):
            return self._finish_task(request)
        if isinstance(request, requests.AwaitOutside) and request.wait.holders:
            is_of_ranks = request.wait.holders <= {child.pid for child in self._children}
            request = request._replace(wait=replace(request.wait, is_of_ranks=is_of_ranks))
        if isinstance(request, requests.Sleep):
            self._rest_while_children_work()
        life = self._kernel.run.life
        is_running = life.phase is RunPhase.RUNNING  # else an interrupted system call may have raised
        if isinstance(request, requests.ProgramRaised) and is_running and not life.fail_trial():
            self.raisers.append(self._running_task.rank_number)
        try:
            return self._kernel.handle(request)
        except Exception as error:
            if is_internal_error(error):
                raise
            self._answer_running_rank(GO_ON, error)
            return self._serve_messages()

    def _rest_while_children_work(self) -> None:
        """Let real time pass for child processes of ranks, for which ranks that sleep again and again may wait."""
        run, (calls, before, rested) = self._kernel.run, self._rest
        since, rested = time.monotonic(), rested if calls == len(run.issued) else 0.0
        until = since + min(run.clock.now - before, _REST_SECONDS, _ALL_RESTS_SECONDS - rested)
        while calls == len(run.issued) and time.monotonic() < until and any(c.has_children() for c in self._children):
            time.sleep(0.01)
        self._rest = len(run.issued), run.clock.now, rested + time.monotonic() - since

    def _finish_task(self, request: FinishTask) -> Answer:
        rank = self._running_task.rank
        answer = self._kernel.handle(request)
        if rank.main.is_finished and len(rank.tasks) == 1:  # else its other threads have to leave first
            inbox, steps = self._inboxes[rank.rank], self._kernel.run.steps
            inbox.handled = None
            inbox.send_to_rank(messages.TurnToRun(None, GO_ON, steps, is_stopping=True))
        return answer

    def _post_call(self, message: messages.IssueCallWithoutReply) -> None:
        self._posted.add_call(self._running_task.rank_number, message.handle, message.call, message.parcel)
        answer = self._kernel.handle(requests.IssueCall(message.handle, message.call))
        while isinstance(answer, (answers.MoveTensors, answers.FailCalls)):
            answer = self._complete_calls(answer)
        # An answer other than `Continue` is also the answer to the rank's next request.

    def _stop_by_failure(self, message: messages.InternalFailure) -> None:
        life = self._kernel.run.life
        if message.is_bug and isinstance(message.error, Exception):
            life.abort_with_internal_error(message.error, self._running_task.rank_number)
        else:
            life.abort(message.error, self._running_task.rank_number)

    def _handle_lost_rank(self, inbox: RankInbox) -> Answer | None:
        """Record that a rank's process is gone; if the rank was running, return the answer for the next task."""
        child = inbox.child
        rank = self._kernel.run.ranks[child.rank]
        inbox.handled = None
        if all(task.is_finished for task in rank.tasks):
            return None
        if self._may_exit_at_once and child.has_succeeded():
            self._left.add(child.rank)
            return self._kernel.remove_lost_rank(rank, None)
        self.lost[child.rank] = child.describe_end()
        self._kernel.run.life.fail_trial()
        if self._kernel.run.life.phase is RunPhase.RUNNING:
            self.raisers.append(child.rank)
        error = requests.RankError(LOST, f"{LOST}: {self.lost[child.rank]}", child.exited_at)
        return self._kernel.remove_lost_rank(rank, error)

    def _await_next_entry(self, mine: RankInbox) -> QueuedMessage | None:
        """Wait for the next message of the running rank's process, and return it; None if the process is gone."""
        since = self._watchdog.clock.elapsed_seconds()
        self._watch_rank(mine, since)  # a rank that polls always has a message here
        while not mine.entries:
            if mine.is_gone:
                return None
            ready = self._poll.poll(_WATCH_SECONDS * 1000)
            if not ready:
                mine.forward_output()
            self._watch_rank(mine, since)
            for file, _ in ready:
                self._read_messages(self._by_file[file])
        entry = mine.entries.popleft()
        mine.forward_output(entry.written)
        return entry

    def _watch_rank(self, mine: RankInbox, since: float) -> None:
        """Handle Ctrl-C, and check the limits of the running rank if the last check was some time ago."""
        self._handle_ctrl_c()
        if self._watchdog.is_due():
            self._watchdog.check_rank(self._running_task, mine.child, since)

    def _read_messages(self, inbox: RankInbox) -> None:
        inbox.read_messages()
        self._desk.serve_debugger(inbox)
        if inbox.is_gone:
            self._poll.unregister(inbox.child.channel.fileno())
        self._handle_waiting_rank(inbox)

    def _handle_ctrl_c(self) -> None:
        """At the first Ctrl-C, make the ranks leave their programs; at the second one, kill the processes."""
        if self._ctrl_c.press_count == self._presses:
            return
        self._presses = self._ctrl_c.press_count
        me = self._kernel.run.running
        is_here = me is not None and self._kernel.run.life.phase is RunPhase.RUNNING
        stack = self._children[me.rank_number].read_stack() if me is not None and is_here else None
        self._kernel.stop_at_limit(RunEnding.INTERRUPTED, me, stack)
        if self._presses > 1:
            for child in self._children:
                child.kill_process()

    def collect_results(self) -> None:
        """Wait for the last message of each rank, and for the end of each process."""
        for inbox in self._inboxes:
            if inbox.child.ended is None and inbox.child.rank not in self.lost and inbox.child.rank not in self._left:
                self._await_last_message(inbox)
            inbox.child.await_exit()

    def _await_last_message(self, inbox: RankInbox) -> None:
        child, end = inbox.child, time.monotonic() + _LAST_WORD_SECONDS
        while child.ended is None and not inbox.is_gone:
            if readable_files([child.channel], _WATCH_SECONDS):
                inbox.read_messages()
            elif time.monotonic() > end:
                child.kill_process()
            self._handle_ctrl_c()
        if child.ended is None:
            self.lost[child.rank] = f"{child.describe_end()} before it reported its result"
            has_returned = self._kernel.run.ranks[child.rank].main.state is TaskState.RETURNED
            if has_returned and child.rank not in self.raisers:
                self.raisers.append(child.rank)

    def forward_output(self) -> None:
        """Copy all remaining output of the ranks to the caller's own streams."""
        for inbox in self._inboxes:
            inbox.forward_output()
