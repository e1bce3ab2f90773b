"""Connects debuggers in ranks that are threads with the run: input and output, and commands about all ranks."""

import sys
from _thread import get_ident as _thread_ident
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ddpsim.simulator.calls import Site
from ddpsim.simulator.debugging.answers import answer_command, make_view, reason_not_debuggable
from ddpsim.simulator.debugging.breakpoints import current_breakpoints
from ddpsim.simulator.debugging.director import GoBackError, RunDirector
from ddpsim.simulator.debugging.late_pdb import debugger_class
from ddpsim.simulator.debugging.session_host import (
    NOT_DIRECTED,
    DebuggerCommandError,
    DebuggerTopic,
    SessionHost,
    VisitResult,
)
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.runtime.call_sites import format_user_stack, site_of_user_frame, user_frame
from ddpsim.simulator.runtime.prompt_server import DebuggerStreams, write_text
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost

Switch = Callable[[int | None, int | None], None]
"""A function that swaps the state of the process, such as `os.environ`, from one rank's to another's."""


class ThreadSessionHost(SessionHost):
    """Connects the debuggers in the ranks of one run with that run."""

    def __init__(self, host: ThreadHost, kernel: Kernel, switch: Switch, director: RunDirector | None = None) -> None:
        """`director` decides where a run under `ddpsim debug` pauses; None in other runs."""
        run = kernel.run
        self._kernel = kernel
        self._director = director
        self._host = host
        self._run = run
        self._switch = switch
        self._visited: RankThread | None = None
        self._streams = DebuggerStreams(None, None)
        """The streams of the debugger that was opened first: other ranks' programs may have replaced their streams."""
        self._open: dict[int, FrameType] = {}
        """For each rank with an open debugger, the program's frame at which it was opened; inner frames are pdb's."""
        self._breakpoints = current_breakpoints()

    def debugged_thread_name(self) -> str:
        """Return the name of the rank or thread that runs here; "" outside of ranks."""
        me = self._debugged_thread()
        return "" if me is None else str(me) if me.has_task else f"rank {me.rank}"

    def _debugged_thread(self) -> RankThread | None:
        running, ident = self._host.baton.running, _thread_ident()
        if self._visited is not None and self._visited.ident == ident:
            return self._visited
        return running if running is not None and running.ident == ident else None

    @contextmanager
    def opened_debugger(self, frame: FrameType | None) -> Iterator[None]:
        """In the `with` block, mark a debugger as open: communication calls are refused."""
        me = self._debugged_thread()
        assert me is not None, "a debugger asks before it opens"
        if self._host.is_stopping:
            raise RankUnwound
        with self._host.prompt_server.opened_debugger():
            asker, me.asker = me.asker, 0
            if me.is_main and frame is not None:
                self._open[me.rank] = frame
            try:
                yield
            finally:
                me.asker = asker
                self._open.pop(me.rank, None)

    def read_line(self, text: str, streams: tuple[Any, Any]) -> str:
        """Let the thread that started the run read a line of the user's input."""
        if self._visited is None:
            self._streams = DebuggerStreams(*streams)
        return self._host.prompt_server.wait_for_line(text, self._streams)

    def show_text(self, text: str, streams: tuple[Any, Any]) -> None:
        """Show a text to the user."""
        write_text(text, DebuggerStreams(*streams) if self._visited is None else self._streams)

    def answer_command(self, topic: DebuggerTopic, argument: str) -> str:
        """Return the text that answers a command about all ranks."""
        begun = self._frames_by_rank().items()
        frames = {rank: frame for rank, frame in begun if not self._run.ranks[rank].main.is_finished}
        places: dict[int, Site] = {rank: site_of_user_frame(frame) for rank, frame in frames.items()}
        shown = frames if topic is DebuggerTopic.WHERE else {}
        stacks = {rank: format_user_stack(frame) for rank, frame in shown.items()}
        me = self._debugged_thread()
        return answer_command(topic, argument, make_view(self._run, None if me is None else me.rank, places, stacks))

    def _frames_by_rank(self) -> dict[int, FrameType]:
        """Return the program's current frame of each rank that has begun."""
        by_ident, opened = sys._current_frames(), self._open
        found = {
            rank.rank: user_frame(opened.get(rank.rank) or by_ident.get(rank.main.ident)) for rank in self._host.ranks
        }
        return {rank: frame for rank, frame in found.items() if frame is not None}

    def visit_rank(self, rank: int) -> VisitResult:
        """Open a debugger on another rank's thread, with that rank's process state, such as `os.environ`."""
        if problem := reason_not_debuggable(self._run, rank, lambda: rank in self._frames_by_rank()):
            return VisitResult(problem=problem)
        me, other = self._debugged_thread(), self._host.ranks[rank].main
        assert me is not None
        visited, known = VisitResult(), self._breakpoints

        def debug_visited_rank() -> None:
            nonlocal visited
            with suppress(RankUnwound):  # the run is ending; the caller notices it, too
                visited = VisitResult(debugger_class(self)().debug_paused_rank())

        self._visited = other
        self._switch(me.rank, rank)
        try:
            other.run_while_sleeping(debug_visited_rank)
        finally:
            self._switch(rank, me.rank)
            self._visited = None
        self._host.prompt_server.raise_if_closed()
        if self._breakpoints != known:
            debugger_class(self).apply_breakpoints()
        return visited

    def share_breakpoints(self) -> None:
        """Set the breakpoints of this process in all ranks. Ranks that have not begun set them when they begin."""
        if (now := current_breakpoints()) == self._breakpoints:
            return
        self._breakpoints, heed = now, debugger_class(self).apply_breakpoints
        awake = self._debugged_thread(), self._host.baton.running
        for rank in self._frames_by_rank():
            main = self._host.ranks[rank].main
            if main not in awake and not main.is_finished:
                main.run_while_sleeping(heed)
        heed()

    def run_director_command(self, command: str) -> str:
        """Carry out a command that steers the run, such as `switch`, and return the reply."""
        me = self._debugged_thread()
        assert me is not None
        if self._director is None:
            raise DebuggerCommandError(NOT_DIRECTED.format(command.split()[0]))
        try:
            return self._director.run_command(command, me.rank, self._run, lambda: self._kernel.schedule)
        except GoBackError as error:
            self.abort_run(error)

    def open_debugger(self, rank: int, header: str) -> None:
        """Open a debugger in a rank until the user continues the program."""
        self._streams = DebuggerStreams(sys.stdin, sys.stdout)
        write_text(f"{header}\n", self._streams)
        then = f"rank {rank}"
        while then.startswith("rank "):
            then = self._debug_rank(int(then.removeprefix("rank ")))
        if then == "quit":
            self.abort_run(BdbQuit())

    def _debug_rank(self, rank: int) -> str:
        """Open a debugger in a rank and return the last command typed there."""
        me = self._debugged_thread()
        assert me is not None
        if rank == me.rank and me.is_main:
            return str(debugger_class(self)().debug_paused_rank())
        asker, me.asker = me.asker, 0
        try:
            visited = self.visit_rank(rank)
        finally:
            me.asker = asker
        if visited.problem:
            write_text(f"*** {visited.problem}\n", self._streams)
        frames = self._frames_by_rank()
        return visited.then or f"rank {me.rank if me.rank in frames else next(iter(frames))}"

    def prepare_program(self, rank: int) -> None:
        """Before a rank's program: set breakpoints, and pause at its first line if the user wants to pause there."""
        if current_breakpoints().those:
            debugger_class(self).apply_breakpoints()
        director = self._director
        if director is not None and (director.rank_of_start_goal == rank or director.pauses_where_rank_runs(rank)):
            director.goal = None
            debugger_class(self)().pause_at_first_line()
