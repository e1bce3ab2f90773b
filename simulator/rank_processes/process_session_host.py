"""Connects a debugger in a rank's process to the coordinator, which has the terminal and all other ranks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any

from ddpsim.simulator.debugging.breakpoints import AllBreakpoints, current_breakpoints, set_breakpoints
from ddpsim.simulator.debugging.late_pdb import debugger_class
from ddpsim.simulator.debugging.session_host import DebuggerCommandError, DebuggerTopic, SessionHost, VisitResult
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel.states import RunEnding
from ddpsim.simulator.rank_processes import messages
from ddpsim.simulator.rank_processes.messages import DebuggerReply
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.runtime.call_sites import format_user_stack
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost


class ProcessSessionHost(SessionHost):
    """The connection of one rank's debuggers to the coordinator."""

    def __init__(self, host: ThreadHost, channel: RankChannel, await_turn: Callable[[], None]) -> None:
        """`await_turn` waits until the rank has the baton (the right to run), if it may compute without it."""
        self._host = host
        self._own_channel = channel
        self._await_turn = await_turn
        self._frame: FrameType | None = None
        """The frame at which a debugger is open; frames above it belong to the debugger."""
        self._is_visited = False
        self._breakpoints = AllBreakpoints()
        self._process = os.getpid()

    def debugged_thread_name(self) -> str:
        """Return the name of the rank, or of its thread, that runs here; "" elsewhere."""
        me = self._debugged_thread()
        return "" if me is None else str(me)

    def _debugged_thread(self) -> RankThread | None:
        running = self._host.baton.running
        is_here = running is not None and running.ident == get_ident() and os.getpid() == self._process
        return running if is_here else None

    @contextmanager
    def opened_debugger(self, frame: FrameType | None) -> Iterator[None]:
        """Mark a debugger as open in the `with` block, in which the program cannot communicate."""
        me = self._debugged_thread()
        assert me is not None, "a debugger asks before it opens"
        if self._host.is_stopping:
            raise RankUnwound
        if not self._is_visited:
            self._await_turn()
        asker, me.asker, self._frame = me.asker, 0, frame
        self._own_channel.send_message(messages.SessionOpened())
        try:
            with self._host.prompt_server.opened_debugger():
                yield
        finally:
            me.asker, self._frame = asker, None
            self._own_channel.send_message(messages.SessionClosed())

    def read_line(self, text: str, streams: tuple[Any, Any]) -> str:
        """Make the coordinator read a line from the user, and return the line."""
        line = self._ask_coordinator(messages.ReadLine(text), UsageError)
        if line is None:
            raise EOFError
        return line

    def show_text(self, text: str, streams: tuple[Any, Any]) -> None:
        """Make the coordinator show a text to the user."""
        self._own_channel.send_message(messages.ShowText(text))

    def answer_command(self, topic: DebuggerTopic, argument: str) -> str:
        """Return information on all ranks."""
        return self._ask_coordinator(messages.QueryRanks(topic, argument, format_user_stack(self._frame))) or ""

    def _ask_coordinator(self, question: Any, failure: type[UsageError] = DebuggerCommandError) -> str | None:
        """Return the text of the coordinator's reply. Raises `failure` if the reply has a problem instead."""
        reply = self._exchange_messages(question)
        if reply.problem:
            raise failure(reply.problem)
        text: str | None = reply.text
        return text

    def _exchange_messages(self, question: Any) -> Any:
        """Send a message to the coordinator and return its answer; leave the program if the run ends."""
        answer = self._own_channel.exchange_messages(question)
        if isinstance(answer, DebuggerReply) and answer.is_over:
            self._host.kernel.run.life.begin_stop(RunEnding.INTERRUPTED)
            raise RankUnwound
        return answer

    def visit_rank(self, rank: int) -> VisitResult:
        """Open a debugger in another rank, in its process."""
        visited: VisitResult = self._exchange_messages(messages.DebugOtherRank(rank))
        return visited

    def serve_other_rank(self, asked: messages.OpenDebugger | AllBreakpoints) -> None:
        """Do what the coordinator asks on behalf of a debugger in another rank, while this rank waits for an answer."""
        if isinstance(asked, AllBreakpoints):
            set_breakpoints(asked)
            self._breakpoints = asked
            self._set_breakpoints()
            return
        then = ""
        self._is_visited = True
        try:
            then = debugger_class(self)().debug_paused_rank()
        except RankUnwound:  # the answer that the rank waits for repeats that
            pass
        finally:
            self._is_visited = False
            self._own_channel.send_message(messages.RankDebuggerEnded(then))

    def share_breakpoints(self) -> None:
        """Set the debugger's breakpoints, which are those of this process, in all ranks."""
        if (now := current_breakpoints()) != self._breakpoints:
            self._breakpoints = now
            self._own_channel.send_message(now)
            self._set_breakpoints()

    def _set_breakpoints(self) -> None:
        """Set the breakpoints also in the program's main thread, which sleeps if another thread runs here."""
        main, heed = self._host.ranks[0].main, debugger_class(self).apply_breakpoints
        if main.ident != get_ident() and not main.is_finished:
            main.run_while_sleeping(heed)
        heed()

    def run_director_command(self, command: str) -> str:
        """Send a command that chooses how the run continues to the coordinator, and return the reply."""
        return self._ask_coordinator(messages.DirectRun(command)) or ""

    def begin(self) -> None:
        """Open the debugger at the first line of the program."""
        debugger_class(self)().pause_at_first_line()
