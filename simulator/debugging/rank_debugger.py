"""pdb in a rank: the same, with a prompt that says where it stands, and commands for all ranks."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType, TracebackType
from typing import Any, ClassVar

from ddpsim.simulator.debugging.frames import last_frame, outermost, program_frame, within_program
from ddpsim.simulator.debugging.lines import Console, Lines
from ddpsim.simulator.debugging.session_host import CannotError, SessionHost, Topic
from ddpsim.simulator.debugging.stacks import counted
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.call_sites import is_projects, package_of

_NOT_STEPPED_INTO = ("ddpsim.simulator", "ddpsim.simulator.*", "ddpsim.scenarios.pytest_plugin.*")
"""Modules that run the program, and are none of it."""


class RankDebugger(pdb.Pdb):
    """Outside of ranks it is pdb as it is."""

    session_host: ClassVar[SessionHost]
    """Of the execution."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._visitor: Visitor | None = None
        self._awaits_program = False

    def interaction(self, frame: FrameType | None, *traceback: Any) -> None:
        """Have the word until a command lets the program go on."""
        if self.session_host.is_over():
            self.set_continue()
            return
        with self._having_the_word(frame or last_frame(*traceback)):
            super().interaction(frame, *traceback)

    def bp_commands(self, frame: FrameType) -> Any:
        """Do what `commands` says is to be done at a breakpoint; it may end in a prompt."""
        if getattr(self, "currentbp", 0) not in self.commands or self.session_host.is_over():
            return super().bp_commands(frame)
        with self._having_the_word(frame):
            return super().bp_commands(frame)

    @contextmanager
    def _having_the_word(self, frame: FrameType | None) -> Iterator[None]:
        """While commands are carried out in a frame of the program; outside of ranks they are as pdb has them."""
        who = self.session_host.who()
        if not who or isinstance(self.stdin, Lines):
            yield
            return
        kept = self.stdin, self.stdout, self.use_rawinput, self.prompt
        lines = Lines(self.session_host, (self.stdin, self.stdout))
        self.stdin = self.stdout = lines  # type: ignore[assignment]
        self.use_rawinput, self.prompt, self.nosigint = False, f"({who}) ", True
        self.skip = {*(self.skip or ()), *_NOT_STEPPED_INTO}
        self.botframe = outermost(frame) or self.botframe
        with self.session_host.opened(frame):
            try:
                yield
                lines.finish()
            except Exception as error:  # under pytest `q` raises what ends the session
                self.session_host.leave(error)
            finally:
                self.stdin, self.stdout, self.use_rawinput, self.prompt = kept
            if self.quitting and self._visitor is None:
                self.session_host.leave(bdb.BdbQuit())
            self.session_host.share_breakpoints()

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """A frame with its line; its file as seen from the working folder, if it lies there."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        folder = os.path.join(os.getcwd(), "")
        return text.removeprefix(folder) if self.session_host.who() else text

    def look(self) -> str:
        """Look into a rank that stands still, on its own thread; the command for who let it be looked at, "" for none.

        Of a program that has raised what it raised is looked at.
        """
        self._visitor = visitor = Visitor()
        frame, error = program_frame(sys._getframe()), sys.exc_info()[1]
        try:
            self.reset()
            self.interaction(frame, None if frame is not None else within_program(error))
        finally:
            self._visitor = None
        return visitor.then

    def begin(self) -> None:
        """Stop at the first line of the program that this thread is about to run."""
        self.reset()
        self._awaits_program = True
        sys.settrace(self.trace_dispatch)

    @classmethod
    def heed_breakpoints(cls) -> None:
        """Let the thread that runs here stop at the breakpoints that there are now, whoever has set them."""
        tracing = getattr(sys.gettrace(), "__self__", None)
        if isinstance(tracing, RankDebugger):
            tracing._know_breakpoints()
        elif bdb.Breakpoint.bplist:
            cls()._watch()

    def _know_breakpoints(self) -> None:
        self.breaks = {}
        for file, line in bdb.Breakpoint.bplist:
            self.breaks.setdefault(file, []).append(line)
        if self.breaks:
            self._trace_program()
        elif self.stoplineno == -1:
            sys.settrace(None)

    def _watch(self) -> None:
        """Stop at breakpoints, and nowhere else."""
        self.reset()
        self.botframe = sys._getframe()
        self.set_continue()
        self._trace_program()

    def stop_here(self, frame: FrameType) -> bool:
        """True if the program is to stop in a frame; where it is being left it stops nowhere."""
        if self.session_host.is_over():
            self.set_continue()
            return False
        return is_projects(frame.f_code) if self._awaits_program else bool(super().stop_here(frame))

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop where a function is called, but for the first one, in which the first line is meant."""
        if not self._awaits_program:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line."""
        self._awaits_program = False
        super().user_line(frame)

    # --- all ranks ----------------------------------------------------------------------------------------------------

    def do_ranks(self, argument: str) -> None:
        """ranks

        A line for each rank: what it does or waits for, and where.
        """
        self._tell(Topic.RANKS, argument)

    def do_slots(self, argument: str) -> None:
        """slots

        The calls that wait for others: who has come, and who is missing.
        """
        self._tell(Topic.SLOTS, argument)

    def do_calls(self, argument: str) -> None:
        """calls [R]

        The latest calls, of all ranks or of rank R.
        """
        self._tell(Topic.CALLS, argument)

    def do_why(self, argument: str) -> None:
        """why

        The diagnosis: what was found, or who waits for whom so far.
        """
        self._tell(Topic.WHY, argument)

    def do_where(self, arg: str) -> None:
        """w(here) [all]

        The stack of this rank, or those of all.
        """
        if arg.strip() == "all":
            self._tell(Topic.WHERE, "")
        else:
            super().do_where(arg)

    do_w = do_bt = do_where

    def print_stack_trace(self, *count: Any) -> None:
        """The stack; in ranks the frames of installed packages, but for the one that is looked at, are counted."""
        if any(count) or not self.session_host.who():
            super().print_stack_trace(*count)
            return
        stack = [(entry, self._package_at(index)) for index, entry in enumerate(self.stack)]
        for is_package, same in groupby(stack, key=lambda each: bool(each[1])):
            entries = list(same)
            if is_package:
                self.message(counted(package for _, package in entries))
            for entry, _ in () if is_package else entries:
                self.print_stack_entry(entry)

    def _error_exc(self) -> None:
        """Say what is wrong with what was typed; of a refusal of ours the line alone."""
        error = sys.exc_info()[1]
        if isinstance(error, UsageError):
            self.error(str(error))
        else:
            super()._error_exc()  # type: ignore[misc]

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack, and where to begin in it: of what a rank raised at the innermost line of the program's own files.

        What a library does below is a `down` away.
        """
        stack, index = super().get_stack(f, t)
        if t is None or self._visitor is None:
            return stack, index
        own = (number for number in range(index, -1, -1) if is_projects(stack[number][0].f_code))
        return stack, next(own, index)

    def _package_at(self, index: int) -> str:
        return "" if index == self.curindex else package_of(self.stack[index][0].f_code.co_filename)

    def _tell(self, topic: Topic, argument: str) -> None:
        try:
            self.message(self.session_host.tell(topic, argument.strip()))
        except CannotError as error:
            self.error(str(error))

    # --- other ranks --------------------------------------------------------------------------------------------------

    def do_rank(self, argument: str) -> bool | None:
        """rank R

        Look into the stack and the variables of rank R. What lets the program go on works there, too.
        """
        if not argument.strip().isdecimal():
            self.error(f"rank is {argument.strip()!r}, expected the number of a rank: as in `rank 0`")
            return None
        if self.session_host.who() == f"rank {int(argument)}":
            self.print_stack_entry(self.stack[self.curindex])
            return None
        if self._visitor is not None:
            return self._end_visit(f"rank {int(argument)}")
        visited = self.session_host.visit(int(argument))
        if visited.problem:
            self.error(visited.problem)
        elif visited.then:
            return self.onecmd(visited.then)
        return None

    # --- the run ------------------------------------------------------------------------------------------------------

    def do_next(self, arg: str) -> bool | None:
        """n(ext) [call]

        To the next line of this function; or to where this rank makes its next call.
        """
        return self._go("next call") if arg.strip() == "call" else super().do_next(arg)

    do_n = do_next

    def do_until(self, arg: str) -> bool | None:
        """unt(il) [lineno | call OPERATION #N]

        To a line beyond this one; or to where a rank makes a call, as in `until call all_reduce #9`.
        """
        return self._go(f"until {arg}") if arg.strip().startswith("call") else super().do_until(arg)

    do_unt = do_until

    def do_switch(self, argument: str) -> bool | None:
        """switch R

        Let rank R run as soon as the running one comes to a choice, and stop where it goes on.
        """
        return self._go(f"switch {argument}")

    def do_back(self, argument: str) -> bool | None:
        """back [call]

        To the step before this one, or to this rank's latest call: the run is run again up to there.
        """
        return self._go(f"back {argument}")

    def do_save(self, argument: str) -> None:
        """save [FILE.toml]

        Show the command that replays the choices made so far, or save them as a scenario.
        """
        self._direct(f"save {argument}")

    def do_run(self, arg: str) -> None:
        """run, restart

        Of pdb's own, for a program that it has started itself: here `back` runs the program again.
        """
        self.error("a run begins again where `ddpsim debug` does: q, and start it once more, or go `back` in it")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact

        An interactive interpreter that has the names which are to be seen here; Ctrl-D leaves it.
        """
        if isinstance(self.stdin, Lines) and self.curframe is not None:
            Console({**self.curframe.f_globals, **self.curframe_locals}, self.stdin).run()
        else:
            super().do_interact(arg)

    def _go(self, command: str) -> bool | None:
        return self.do_continue("") if self._direct(command.strip()) else None

    def _direct(self, command: str) -> bool:
        """False if it cannot be done."""
        try:
            told = self.session_host.direct(command)
        except CannotError as error:
            self.error(str(error))
            return False
        if told:
            self.message(told)
        return True

    def _end_visit(self, then: str) -> bool:
        assert self._visitor is not None
        self._visitor.then = then
        return True

    # --- going on -----------------------------------------------------------------------------------------------------

    def onecmd(self, line: str) -> bool:
        """Carry out a command. In a visit, one that lets the program go on is carried out by the rank that stands."""
        is_over = bool(super().onecmd(line))
        if is_over and self._visitor is not None and not self._visitor.then:
            if self.quitting:
                self._visitor.then = "quit"
                self.quitting = False
            else:
                self._stop_here_later()
                self._visitor.then = "continue"
        return is_over

    def _stop_here_later(self) -> None:
        """After n, s and the like: stop where these say once the rank goes on. After c nothing is to be done."""
        if self.stoplineno != -1 or self.breaks:
            self._trace_program()

    def _trace_program(self) -> None:
        """Trace what this thread runs, from where its program stands on."""
        frame = program_frame(sys._getframe())
        while frame is not None:
            frame.f_trace = self.trace_dispatch
            frame = frame.f_back
        sys.settrace(self.trace_dispatch)


class Visitor:
    """A look from another rank."""

    def __init__(self) -> None:
        self.then = ""
