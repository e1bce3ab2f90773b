"""The coordinator's server for debuggers in ranks: it reads lines for them, answers queries, and opens other ranks."""

from __future__ import annotations

import re
import select
import sys
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpsim.simulator.calls import Site
from ddpsim.simulator.ctrl_c import CtrlC
from ddpsim.simulator.debugging.answers import answer, view_of, why_not_visited
from ddpsim.simulator.debugging.breakpoints import Breakpoints, put
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.debugging.goals import GoBackError
from ddpsim.simulator.debugging.session_host import NOT_DIRECTED, CannotError, Topic, Visited
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.states import Ending, Phase
from ddpsim.simulator.rank_processes import debugger_messages
from ddpsim.simulator.rank_processes.inbox import Inbox
from ddpsim.simulator.runtime.call_sites import is_users_file
from ddpsim.simulator.runtime.prompt_server import Streams, read_line, show
from ddpsim.simulator.runtime.stopwatch import Stopwatch

_LINE = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_WITH_STACKS = (Topic.RANKS, Topic.WHERE)
_VISIT_SECONDS = 0.05


class DebuggerDesk:
    """The server for debuggers of one execution whose ranks are processes."""

    def __init__(
        self,
        kernel: Kernel,
        inboxes: Sequence[Inbox],
        *,
        clock: Stopwatch,
        ctrl_c: CtrlC,
        director: Director | None,
    ) -> None:
        """`clock` is the clock of the limits; `director` controls a run that is debugged from its beginning."""
        self._kernel = kernel
        self._inboxes = inboxes
        self._clock = clock
        self._ctrl_c = ctrl_c
        self._director = director
        self._read = read_line if director is None else director.read
        if director is not None:
            director.open_debugger = self.stop
        self._streams: Streams | None = None

    def serve(self, inbox: Inbox) -> debugger_messages.Looked | None:
        """Serve the messages of a debugger in a rank, until its session ends."""
        while inbox.debugger:
            message = inbox.debugger.popleft()
            if isinstance(message, debugger_messages.Looked):
                return message
            self._hear(inbox, message)
        return None

    def _hear(self, inbox: Inbox, message: debugger_messages.DebuggerMessage) -> None:
        if isinstance(message, debugger_messages.Opened):
            self._clock.stop()
        elif isinstance(message, debugger_messages.Closed):
            self._clock.go_on()
        elif isinstance(message, debugger_messages.Show):
            inbox.forward_output()
            show(message.text, self._terminal())
        elif isinstance(message, debugger_messages.ReadLine):
            inbox.forward_output()
            inbox.answer(self._typed(message.text))
        elif isinstance(message, debugger_messages.Tell):
            inbox.answer(self._told(inbox, message))
        elif isinstance(message, debugger_messages.VisitRank):
            inbox.answer(self._visit(message.rank))
        elif isinstance(message, debugger_messages.Direct):
            inbox.answer(self._direct(inbox.child.rank, message.command))
        elif isinstance(message, Breakpoints):
            put(message)  # for later runs, too
            for other in self._inboxes:
                if other is not inbox:
                    other.answer(message)

    @property
    def _is_over(self) -> bool:
        return self._ctrl_c.is_pressed or self._kernel.run.life.phase is not Phase.RUNNING

    def _typed(self, text: str) -> debugger_messages.DebuggerReply:
        if self._is_over:
            return debugger_messages.DebuggerReply(is_over=True)
        try:
            with self._ctrl_c.raising():
                return debugger_messages.DebuggerReply(self._read(text, self._terminal()))
        except EOFError:
            return debugger_messages.DebuggerReply(None)
        except UsageError as error:
            return debugger_messages.DebuggerReply(problem=str(error))
        except KeyboardInterrupt:  # the coordinator has counted it
            return debugger_messages.DebuggerReply(is_over=True)

    def _terminal(self) -> Streams:
        if self._streams is None:
            self._streams = terminal_streams()
        return self._streams

    def _told(self, inbox: Inbox, message: debugger_messages.Tell) -> debugger_messages.DebuggerReply:
        stacks = {inbox.child.rank: message.stack}
        if message.topic in _WITH_STACKS:
            stacks |= {
                other.child.rank: other.child.stack().text
                for other in self._inboxes
                if other is not inbox and self._has_program(other)
            }
        view = view_of(self._kernel.run, inbox.child.rank, _places(stacks), stacks)
        try:
            return debugger_messages.DebuggerReply(answer(message.topic, message.argument, view))
        except CannotError as error:
            return debugger_messages.DebuggerReply(problem=str(error))

    def _has_program(self, inbox: Inbox) -> bool:
        """Return whether the program of a rank has begun and not ended."""
        has_begun = inbox.handled is None or inbox.handled.message is not None
        return has_begun and not inbox.is_gone and not self._kernel.run.ranks[inbox.child.rank].main.is_finished

    def _visit(self, rank: int) -> Visited | None:
        if problem := why_not_visited(self._kernel.run, rank, lambda: self._has_program(self._inboxes[rank])):
            return Visited(problem=problem)
        inbox = self._inboxes[rank]
        inbox.answer(debugger_messages.Look())
        while not inbox.is_gone:
            if select.select([inbox.child.channel], [], [], _VISIT_SECONDS)[0]:
                inbox.read()
                if (looked := self.serve(inbox)) is not None:
                    return None if self._is_over else Visited(looked.then)
        return Visited(problem=f"the process of rank {rank} is gone")

    def _direct(self, rank: int, command: str) -> debugger_messages.DebuggerReply:
        if self._director is None:
            return debugger_messages.DebuggerReply(problem=NOT_DIRECTED.format(command.split()[0]))
        try:
            return debugger_messages.DebuggerReply(
                self._director.obey(command, rank, self._kernel.run, lambda: self._kernel.choices)
            )
        except CannotError as error:
            return debugger_messages.DebuggerReply(problem=str(error))
        except GoBackError as error:
            self._kernel.run.life.break_off(error, rank)
            return debugger_messages.DebuggerReply(is_over=True)

    def stop(self, rank: int, header: str) -> None:
        """Open a debugger in a rank that waits for an answer, and serve it until it continues the program."""
        for inbox in self._inboxes:
            inbox.forward_output()
        show(f"{header}\n", self._terminal())
        then, here = f"rank {rank}", f"rank {rank}"
        while then.startswith("rank "):
            visited = self._visit(int(then.removeprefix("rank ")))
            if visited is None:
                self._kernel.stop(Ending.INTERRUPTED)
                return
            if visited.problem:
                show(f"*** {visited.problem}\n", self._terminal())
                if then == here:
                    return
            then = visited.then or here
        if then == "quit":
            self._kernel.run.life.break_off(BdbQuit(), rank)


def _places(stacks: Mapping[int, str]) -> dict[int, Site]:
    """Return the innermost line of user code of each stack that has one."""
    found = {}
    for rank, text in stacks.items():
        for path, line, function in _LINE.findall(text):
            if is_users_file(path):
                found[rank] = Site(path, int(line), function)
    return found


def terminal_streams() -> Streams:
    """Return the caller's own streams, or the process's terminal if something such as pytest has replaced those
    streams."""
    try:
        sys.stdin.fileno()
        is_captured = type(sys.stdin).__module__.startswith("_pytest.")
    except (AttributeError, OSError, ValueError):
        is_captured = True
    if is_captured:
        try:
            path = Path("/dev/tty")
            return Streams(path.open(), path.open("w"))
        except OSError:
            pass
    return Streams(sys.stdin, sys.stdout)
