"""The coordinator's server for debuggers in ranks: it reads lines for them, answers queries, and opens other ranks."""

import re
import sys
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ddpsim.simulator.calls import Site
from ddpsim.simulator.ctrl_c import CtrlCGuard
from ddpsim.simulator.debugging.answers import answer_command, make_view, reason_not_debuggable
from ddpsim.simulator.debugging.breakpoints import AllBreakpoints, set_breakpoints
from ddpsim.simulator.debugging.director import GoBackError, RunDirector
from ddpsim.simulator.debugging.session_host import NOT_DIRECTED, DebuggerCommandError, DebuggerTopic, VisitResult
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.channel import readable_files
from ddpsim.simulator.rank_processes.inbox import RankInbox
from ddpsim.simulator.rank_processes.messages import DebuggerReply
from ddpsim.simulator.runtime.call_sites import is_user_file
from ddpsim.simulator.runtime.prompt_server import DebuggerStreams, read_edited_line, write_text
from ddpsim.simulator.runtime.stopwatch import Stopwatch

_LINE = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_WITH_STACKS = (DebuggerTopic.RANKS, DebuggerTopic.WHERE)
_VISIT_SECONDS = 0.05


class DebuggerServer:
    """The server for debuggers of one execution whose ranks are processes."""

    def __init__(
        self,
        kernel: Kernel,
        inboxes: Sequence[RankInbox],
        *,
        clock: Stopwatch,
        ctrl_c: CtrlCGuard,
        director: RunDirector | None,
        hosts: str = "",
    ) -> None:
        """`clock` measures the time limits; `director` decides where a run under `ddpsim debug` pauses; `hosts` says
        which rank is on which host."""
        self._hosts = f"  {hosts}\n" if hosts else ""
        self._kernel = kernel
        self._inboxes = inboxes
        self._clock = clock
        self._ctrl_c = ctrl_c
        self._director = director
        self._read = read_edited_line if director is None else director.read
        if director is not None:
            director.open_debugger = self.start_debugger

    def serve_debugger(self, inbox: RankInbox) -> messages.RankDebuggerEnded | None:
        """Answer the messages of a debugger in a rank, until the debugger's session ends."""
        while inbox.debugger:
            message = inbox.debugger.popleft()
            if isinstance(message, messages.RankDebuggerEnded):
                return message
            self._handle_message(inbox, message)
        return None

    def _handle_message(self, inbox: RankInbox, message: messages.DebuggerMessage) -> None:
        if isinstance(message, messages.SessionOpened):
            self._clock.pause()
        elif isinstance(message, messages.SessionClosed):
            self._clock.unpause()
        elif isinstance(message, messages.ShowText):
            inbox.forward_output()
            write_text(message.text, self._terminal)
        elif isinstance(message, messages.ReadLine):
            inbox.forward_output()
            inbox.send_to_rank(self._read_typed_line(message.text))
        elif isinstance(message, messages.QueryRanks):
            inbox.send_to_rank(self._answer_query(inbox, message))
        elif isinstance(message, messages.DebugOtherRank):
            inbox.send_to_rank(self._open_debugger_in(message.rank) or DebuggerReply(is_over=True))
        elif isinstance(message, messages.DirectRun):
            inbox.send_to_rank(self._run_director_command(inbox.child.rank, message.command))
        elif isinstance(message, AllBreakpoints):
            set_breakpoints(message)  # for later runs, too
            for other in self._inboxes:
                if other is not inbox:
                    other.send_to_rank(message)

    @property
    def _is_run_ending(self) -> bool:
        return self._ctrl_c.is_pressed or self._kernel.run.life.phase is not RunPhase.RUNNING

    def _read_typed_line(self, text: str) -> DebuggerReply:
        if self._is_run_ending:
            return DebuggerReply(is_over=True)
        try:
            with self._ctrl_c.raise_on_press():
                return DebuggerReply(self._read(text, self._terminal))
        except EOFError:
            return DebuggerReply(None)
        except UsageError as error:
            return DebuggerReply(problem=str(error))
        except KeyboardInterrupt:  # the coordinator has counted it
            return DebuggerReply(is_over=True)

    @cached_property
    def _terminal(self) -> DebuggerStreams:
        return terminal_streams()

    def _answer_query(self, inbox: RankInbox, message: messages.QueryRanks) -> DebuggerReply:
        stacks = {inbox.child.rank: message.stack}
        if message.topic in _WITH_STACKS:
            others = [each for each in self._inboxes if each is not inbox and self._is_program_running(each)]
            stacks |= {other.child.rank: other.child.read_stack().text for other in others}
        view = make_view(self._kernel.run, inbox.child.rank, _user_sites(stacks), stacks)
        try:
            text = answer_command(message.topic, message.argument, view)
            return DebuggerReply(self._hosts + text if message.topic is DebuggerTopic.RANKS else text)
        except DebuggerCommandError as error:
            return DebuggerReply(problem=str(error))

    def _is_program_running(self, inbox: RankInbox) -> bool:
        """Return whether the program of a rank is running: it has begun and not ended."""
        has_begun = inbox.handled is None or inbox.handled.message is not None
        return has_begun and not inbox.is_gone and not self._kernel.run.ranks[inbox.child.rank].main.is_finished

    def _open_debugger_in(self, rank: int) -> VisitResult | None:
        run = self._kernel.run
        if problem := reason_not_debuggable(run, rank, lambda: self._is_program_running(self._inboxes[rank])):
            return VisitResult(problem=problem)
        inbox = self._inboxes[rank]
        inbox.send_to_rank(messages.OpenDebugger())
        while not inbox.is_gone:
            if readable_files([inbox.child.channel], _VISIT_SECONDS):
                inbox.read_messages()
                if (looked := self.serve_debugger(inbox)) is not None:
                    return None if self._is_run_ending else VisitResult(looked.then)
        return VisitResult(problem=f"the process of rank {rank} is gone")

    def _run_director_command(self, rank: int, command: str) -> DebuggerReply:
        if self._director is None:
            return DebuggerReply(problem=NOT_DIRECTED.format(command.split()[0]))
        try:
            run = self._kernel.run
            return DebuggerReply(self._director.run_command(command, rank, run, lambda: self._kernel.schedule))
        except DebuggerCommandError as error:
            return DebuggerReply(problem=str(error))
        except GoBackError as error:
            self._kernel.run.life.abort(error, rank)
            return DebuggerReply(is_over=True)

    def start_debugger(self, rank: int, header: str) -> None:
        """Open a debugger in a rank that waits for an answer, and serve it until it continues the program."""
        for inbox in self._inboxes:
            inbox.forward_output()
        write_text(f"{header}\n", self._terminal)
        then, here = f"rank {rank}", f"rank {rank}"
        while then.startswith("rank "):
            visited = self._open_debugger_in(int(then.removeprefix("rank ")))
            if visited is None:
                self._kernel.stop_run(RunEnding.INTERRUPTED)
                return
            if visited.problem:
                write_text(f"*** {visited.problem}\n", self._terminal)
                if then == here:
                    return
            then = visited.then or here
        if then == "quit":
            self._kernel.run.life.abort(BdbQuit(), rank)


def _user_sites(stacks: Mapping[int, str]) -> dict[int, Site]:
    """Return the innermost line of the user's code in each stack, without stacks that have no such line."""
    found = {}
    for rank, text in stacks.items():
        for path, line, function in _LINE.findall(text):
            if is_user_file(path):
                found[rank] = Site(path, int(line), function)
    return found


def terminal_streams() -> DebuggerStreams:
    """Return the caller's own streams, or the terminal if something such as pytest has replaced those streams."""
    try:
        sys.stdin.fileno()
        is_captured = type(sys.stdin).__module__.startswith("_pytest.")
    except (AttributeError, OSError, ValueError):
        is_captured = True
    if is_captured:
        with suppress(OSError):
            path = Path("/dev/tty")
            return DebuggerStreams(path.open(), path.open("w"))
    return DebuggerStreams(sys.stdin, sys.stdout)
