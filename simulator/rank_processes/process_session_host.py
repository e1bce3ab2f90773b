"""Connects a debugger in a rank's process to the coordinator, which has the terminal and all other ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn

from ddpsim.simulator.debugging.breakpoints import Breakpoints, breakpoints, put
from ddpsim.simulator.debugging.late_pdb import made_for
from ddpsim.simulator.debugging.session_host import CannotError, Topic, Visited
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel.states import Ending
from ddpsim.simulator.rank_processes import debugger_messages
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.runtime.call_sites import stack_text
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost


class ProcessSessionHost:
    """The connection of one rank's debuggers to the coordinator."""

    def __init__(self, host: ThreadHost, channel: RankChannel, await_turn: Callable[[], None]) -> None:
        """`await_turn` waits until the rank has the baton (the right to run), if it may compute without it."""
        self._host = host
        self._own_channel = channel
        self._await_turn = await_turn
        self._frame: FrameType | None = None
        """The frame at which a debugger is open; frames above it belong to the debugger."""
        self._is_visited = False
        self._breakpoints = Breakpoints()
        self._process = os.getpid()

    def who(self) -> str:
        """Return the name of the rank, or of its thread, that runs here; "" elsewhere."""
        me = self._me()
        return "" if me is None else str(me)

    def is_over(self) -> bool:
        """True if the rank leaves its program."""
        return self._host.is_stopping and self._me() is not None

    def _me(self) -> RankThread | None:
        running = self._host.baton.running
        is_here = running is not None and running.ident == get_ident() and os.getpid() == self._process
        return running if is_here else None

    @contextmanager
    def opened(self, frame: FrameType | None) -> Iterator[None]:
        """Mark a debugger as open in the `with` block, in which the program cannot communicate."""
        me = self._me()
        assert me is not None, "a debugger asks before it opens"
        if self._host.is_stopping:
            raise RankUnwound
        if not self._is_visited:
            self._await_turn()
        asker, me.asker, self._frame = me.asker, 0, frame
        self._own_channel.send(debugger_messages.Opened())
        try:
            with self._host.prompt_server.opened():
                yield
        finally:
            me.asker, self._frame = asker, None
            self._own_channel.send(debugger_messages.Closed())

    def read(self, text: str, streams: tuple[Any, Any]) -> str:
        """Have the coordinator read a line."""
        reply: debugger_messages.DebuggerReply = self._own_channel.exchange(debugger_messages.ReadLine(text))
        self._check(is_over=reply.is_over)
        if reply.problem:
            raise UsageError(reply.problem)
        if reply.text is None:
            raise EOFError
        return reply.text

    def show(self, text: str, streams: tuple[Any, Any]) -> None:
        """Have the coordinator show a text."""
        self._own_channel.send(debugger_messages.Show(text))

    def _check(self, *, is_over: bool) -> None:
        if is_over:
            self._host.kernel.run.life.stop(Ending.INTERRUPTED)
            raise RankUnwound

    def tell(self, topic: Topic, argument: str) -> str:
        """Return information on all ranks."""
        return self._told(debugger_messages.Tell(topic, argument, stack_text(self._frame)))

    def _told(self, asked: debugger_messages.Tell | debugger_messages.Direct) -> str:
        reply: debugger_messages.DebuggerReply = self._own_channel.exchange(asked)
        self._check(is_over=reply.is_over)
        if reply.problem:
            raise CannotError(reply.problem)
        return reply.text or ""

    def visit(self, rank: int) -> Visited:
        """Open a debugger in another rank, in its process."""
        visited: Visited | None = self._own_channel.exchange(debugger_messages.VisitRank(rank))
        self._check(is_over=visited is None)
        return visited or Visited()

    def heed(self, asked: debugger_messages.Look | Breakpoints) -> None:
        """Serve a debugger in another rank, while this rank waits for an answer."""
        if isinstance(asked, Breakpoints):
            put(asked)
            self._breakpoints = asked
            self._heed_breakpoints()
            return
        then = ""
        self._is_visited = True
        try:
            then = made_for(self)().look()
        except RankUnwound:  # the answer that the rank waits for repeats that
            pass
        finally:
            self._is_visited = False
            self._own_channel.send(debugger_messages.Looked(then))

    def share_breakpoints(self) -> None:
        """Set the breakpoints of this process in all ranks."""
        if (now := breakpoints()) != self._breakpoints:
            self._breakpoints = now
            self._own_channel.send(now)
            self._heed_breakpoints()

    def _heed_breakpoints(self) -> None:
        """Set the breakpoints in the program's main thread, too, which sleeps if another thread runs here."""
        main, heed = self._host.ranks[0].main, made_for(self).heed_breakpoints
        if main.ident != get_ident() and not main.is_finished:
            main.have_done(heed)
        heed()

    def direct(self, command: str) -> str:
        """Choose how the run continues."""
        return self._told(debugger_messages.Direct(command))

    def begin(self) -> None:
        """Stop at the first line of the program."""
        made_for(self)().begin()

    def leave(self, error: BaseException) -> NoReturn:
        """End the execution by an error."""
        self._host.kernel.run.life.break_off(error, None)
        raise RankUnwound
