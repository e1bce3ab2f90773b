"""The session host of debuggers in ranks that are threads."""

from __future__ import annotations

import sys
from _thread import get_ident as _thread_ident
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from ddpsim.simulator.calls import Site
from ddpsim.simulator.debugging.answers import answer, view_of, why_not_visited
from ddpsim.simulator.debugging.breakpoints import breakpoints
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.debugging.goals import GoBackError
from ddpsim.simulator.debugging.late_pdb import made_for
from ddpsim.simulator.debugging.session_host import NOT_DIRECTED, CannotError, Topic, Visited
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.runtime.call_sites import site_at, stack_text, user_frame
from ddpsim.simulator.runtime.prompt_server import Streams, show
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost

Switch = Callable[[int | None, int | None], None]
"""Swaps the state of the process, such as `os.environ`, from one rank to another."""


class ThreadSessionHost:
    """The session host of one execution."""

    def __init__(self, host: ThreadHost, kernel: Kernel, switch: Switch, director: Director | None = None) -> None:
        """`director` is given for a run that `ddpsim debug` started."""
        run = kernel.run
        self._kernel = kernel
        self._director = director
        self._host = host
        self._run = run
        self._switch = switch
        self._visited: RankThread | None = None
        self._streams = Streams(None, None)
        """The streams of the debugger that was opened first. A visited rank may have replaced its own."""
        self._open: dict[int, FrameType] = {}
        """The program's frame in each rank that has an open debugger. Inner frames belong to the debugger."""
        self._breakpoints = breakpoints()
        """The breakpoints that are set in all ranks."""

    def who(self) -> str:
        """Return the name of the rank or thread that runs here; "" outside of ranks."""
        me = self._me()
        return "" if me is None else str(me) if me.is_adopted else f"rank {me.rank}"

    def is_over(self) -> bool:
        """True if the rank that runs here is leaving its program."""
        return self._host.is_stopping and self._me() is not None

    def _me(self) -> RankThread | None:
        running, ident = self._host.baton.running, _thread_ident()
        if self._visited is not None and self._visited.ident == ident:
            return self._visited
        return running if running is not None and running.ident == ident else None

    @contextmanager
    def opened(self, frame: FrameType | None) -> Iterator[None]:
        """Mark a debugger as open: communication is refused in it."""
        me = self._me()
        assert me is not None, "a debugger asks before it opens"
        if self._host.is_stopping:
            raise RankUnwound
        with self._host.prompt_server.opened():
            asker, me.asker = me.asker, 0
            if me.is_main and frame is not None:
                self._open[me.rank] = frame
            try:
                yield
            finally:
                me.asker = asker
                self._open.pop(me.rank, None)

    def read(self, text: str, streams: tuple[Any, Any]) -> str:
        """Have the thread that started the execution read a line."""
        if self._visited is None:
            self._streams = Streams(*streams)
        return self._host.prompt_server.read(text, self._streams)

    def show(self, text: str, streams: tuple[Any, Any]) -> None:
        """Show a text."""
        show(text, Streams(*streams) if self._visited is None else self._streams)

    # --- all ranks ----------------------------------------------------------------------------------------------------

    def tell(self, topic: Topic, argument: str) -> str:
        """Return the text that answers a command about all ranks."""
        frames = {rank: frame for rank, frame in self._frames().items() if not self._run.ranks[rank].main.is_finished}
        places: dict[int, Site] = {rank: site_at(frame) for rank, frame in frames.items()}
        stacks = {rank: stack_text(frame) for rank, frame in frames.items()} if topic is Topic.WHERE else {}
        me = self._me()
        return answer(topic, argument, view_of(self._run, None if me is None else me.rank, places, stacks))

    def _frames(self) -> dict[int, FrameType]:
        """Return the program's current frame of each rank that has begun."""
        by_ident, opened = sys._current_frames(), self._open
        found = {
            rank.rank: user_frame(opened.get(rank.rank) or by_ident.get(rank.main.ident)) for rank in self._host.ranks
        }
        return {rank: frame for rank, frame in found.items() if frame is not None}

    # --- other ranks --------------------------------------------------------------------------------------------------

    def visit(self, rank: int) -> Visited:
        """Open a debugger on another rank's thread, with that rank's process state in place."""
        if problem := why_not_visited(self._run, rank, lambda: rank in self._frames()):
            return Visited(problem=problem)
        me, other = self._me(), self._host.ranks[rank].main
        assert me is not None
        visited, known = Visited(), self._breakpoints

        def look() -> None:
            nonlocal visited
            with suppress(RankUnwound):  # the run is ending; the caller notices it, too
                visited = Visited(made_for(self)().look())

        self._visited = other
        self._switch(me.rank, rank)
        try:
            other.have_done(look)
        finally:
            self._switch(rank, me.rank)
            self._visited = None
        self._host.prompt_server.check()
        if self._breakpoints != known:
            made_for(self).heed_breakpoints()
        return visited

    def share_breakpoints(self) -> None:
        """Set the breakpoints of this process in all ranks. Ranks that have not begun set them when they begin."""
        if (now := breakpoints()) == self._breakpoints:
            return
        self._breakpoints, heed = now, made_for(self).heed_breakpoints
        awake = self._me(), self._host.baton.running
        for rank in self._frames():
            main = self._host.ranks[rank].main
            if main not in awake and not main.is_finished:
                main.have_done(heed)
        heed()

    # --- going on -----------------------------------------------------------------------------------------------------

    def direct(self, command: str) -> str:
        """Carry out a command that steers the run and return the reply."""
        me = self._me()
        assert me is not None
        if self._director is None:
            raise CannotError(NOT_DIRECTED.format(command.split()[0]))
        try:
            return self._director.obey(command, me.rank, self._run, lambda: self._kernel.choices)
        except GoBackError as error:
            self.leave(error)

    def stop(self, rank: int, header: str) -> None:
        """Open a debugger in a rank until the user continues the program."""
        self._streams = Streams(sys.stdin, sys.stdout)
        show(f"{header}\n", self._streams)
        then = f"rank {rank}"
        while then.startswith("rank "):
            then = self._look(int(then.removeprefix("rank ")))
        if then == "quit":
            self.leave(BdbQuit())

    def _look(self, rank: int) -> str:
        """Open a debugger in a rank and return the last command typed there."""
        me = self._me()
        assert me is not None
        if rank == me.rank and me.is_main:
            return str(made_for(self)().look())
        asker, me.asker = me.asker, 0
        try:
            visited = self.visit(rank)
        finally:
            me.asker = asker
        if visited.problem:
            show(f"*** {visited.problem}\n", self._streams)
        frames = self._frames()
        return visited.then or f"rank {me.rank if me.rank in frames else next(iter(frames))}"

    def begin(self, rank: int) -> None:
        """Before a rank's program: set breakpoints, and pause at its first line if that is the director's goal."""
        if breakpoints().those:
            made_for(self).heed_breakpoints()
        if self._director is not None and (self._director.starts_in == rank or self._director.goes_on(rank)):
            self._director.goal = None
            made_for(self)().begin()

    def leave(self, error: BaseException) -> NoReturn:
        """End the execution with an error."""
        running = self._host.baton.running
        self._run.life.break_off(error, None if running is None else running.rank)
        raise RankUnwound
