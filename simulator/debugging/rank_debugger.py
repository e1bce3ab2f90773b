"""pdb in a rank, with the rank's number in the prompt, and commands that show all ranks."""

import bdb
import os
import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType, TracebackType
from typing import Any, ClassVar

from ddpsim.simulator.debugging import stacks
from ddpsim.simulator.debugging.lines import DebuggerConsole, DebuggerStream
from ddpsim.simulator.debugging.session_host import DebuggerCommandError, DebuggerTopic, SessionHost
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.call_sites import frames_outwards, installed_package_of, is_project_code
from ddpsim.simulator.wording import values_by_key

_NOT_STEPPED_INTO = ("ddpsim.simulator", "ddpsim.simulator.*", "ddpsim.scenarios.pytest_plugin.*")
"""Modules of Python that run the user's program; the debugger does not step into them."""


class RankDebugger(pdb.Pdb):
    """pdb with commands that show or steer all ranks. Outside of ranks it behaves exactly as pdb."""

    session_host: ClassVar[SessionHost]
    """The connection to the run to which the debugged rank belongs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_visit = False
        """True while the user looks at this rank by the `rank R` command; the run is paused in another rank."""
        self._visit_ended_by = ""
        """The command by which the user left this rank again."""
        self._awaits_program = False

    def interaction(self, frame: FrameType | None, *traceback: Any) -> None:
        """Read debugger commands until one continues the program."""
        if self.session_host.is_unwinding_rank():
            self.set_continue()
            return
        with self._opened_session(frame or stacks.frame_that_raised(*traceback)):
            super().interaction(frame, *traceback)

    def bp_commands(self, frame: FrameType) -> Any:
        """Run the `commands` of a breakpoint; they may end in a prompt."""
        if getattr(self, "currentbp", 0) not in self.commands or self.session_host.is_unwinding_rank():
            return super().bp_commands(frame)
        with self._opened_session(frame):
            return super().bp_commands(frame)

    @contextmanager
    def _opened_session(self, frame: FrameType | None) -> Iterator[None]:
        """A context in which commands have the rank's prompt, streams and stack; outside of ranks it does nothing."""
        who = self.session_host.debugged_thread_name()
        if not who or isinstance(self.stdin, DebuggerStream):
            yield
            return
        kept = self.stdin, self.stdout, self.use_rawinput, self.prompt
        lines = DebuggerStream(self.session_host, (self.stdin, self.stdout))
        self.stdin = self.stdout = lines  # type: ignore[assignment]
        self.use_rawinput, self.prompt, self.nosigint = False, f"({who}) ", True
        self.skip = {*(self.skip or ()), *_NOT_STEPPED_INTO}
        self.botframe = stacks.outermost_program_frame(frame) or self.botframe
        with self.session_host.opened_debugger(frame):
            try:
                yield
                lines.flush_output()
            except Exception as error:  # under pytest, `q` raises an exception that ends the test session
                self.session_host.abort_run(error)
            finally:
                self.stdin, self.stdout, self.use_rawinput, self.prompt = kept
            if self.quitting and not self._is_visit:
                self.session_host.abort_run(bdb.BdbQuit())
            self.session_host.share_breakpoints()

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Format a frame with its line; a file in the working folder is shown by its relative path."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        folder = os.path.join(os.getcwd(), "")
        return text.removeprefix(folder) if self.session_host.debugged_thread_name() else text

    def debug_paused_rank(self) -> str:
        """Open a debugger in a paused rank, on the rank's own thread.

        Return the command that the rank with the first debugger has to carry out; "" for none. If the program has
        raised an exception, this is a post-mortem session.
        """
        self._is_visit, self._visit_ended_by = True, ""
        frame, error = stacks.program_frame(sys._getframe()), sys.exc_info()[1]
        try:
            self.reset()
            self.interaction(frame, None if frame is not None else stacks.traceback_in_program(error))
        finally:
            self._is_visit = False
        return self._visit_ended_by

    def pause_at_first_line(self) -> None:
        """Pause at the first line of the program that this thread is about to run."""
        self.reset()
        self._awaits_program = True
        sys.settrace(self.trace_dispatch)

    @classmethod
    def apply_breakpoints(cls) -> None:
        """Make the current thread pause at all breakpoints of the process, whichever rank's debugger set them."""
        tracing = getattr(sys.gettrace(), "__self__", None)
        if isinstance(tracing, RankDebugger):
            tracing._reload_breakpoints()
        elif bdb.Breakpoint.bplist:
            cls()._trace_for_breakpoints()

    def _reload_breakpoints(self) -> None:
        self.breaks = values_by_key(bdb.Breakpoint.bplist)
        if self.breaks:
            self._trace_program()
        elif self.stoplineno == -1:
            sys.settrace(None)

    def _trace_for_breakpoints(self) -> None:
        """A trace function that pauses at breakpoints and nowhere else."""
        self.reset()
        self.botframe = sys._getframe()
        self.set_continue()
        self._trace_program()

    def stop_here(self, frame: FrameType) -> bool:
        """True if the program has to pause in this frame; false while the program is being ended early."""
        if self.session_host.is_unwinding_rank():
            self.set_continue()
            return False
        return is_project_code(frame.f_code) if self._awaits_program else bool(super().stop_here(frame))

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Pause where a function is called; for the program's first function, pause at its first line instead."""
        if not self._awaits_program:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """Pause at a line of the program, called by pdb."""
        self._awaits_program = False
        super().user_line(frame)

    # --- all ranks ----------------------------------------------------------------------------------------------------

    def do_ranks(self, argument: str) -> None:
        """ranks

        A line for each rank: what it does or waits for, and where.
        """
        self._print_answer(DebuggerTopic.RANKS, argument)

    def do_slots(self, argument: str) -> None:
        """slots

        The calls that wait for other ranks, with the ranks that arrived and the missing ones.
        """
        self._print_answer(DebuggerTopic.SLOTS, argument)

    def do_calls(self, argument: str) -> None:
        """calls [R]

        The latest calls of all ranks, or of rank R.
        """
        self._print_answer(DebuggerTopic.CALLS, argument)

    def do_why(self, argument: str) -> None:
        """why

        The diagnosis: the findings, or which rank waits for which so far.
        """
        self._print_answer(DebuggerTopic.WHY, argument)

    def do_where(self, arg: str) -> None:
        """w(here) [all]

        The stack of this rank, or of all ranks.
        """
        if arg.strip() == "all":
            self._print_answer(DebuggerTopic.WHERE, "")
        else:
            super().do_where(arg)

    do_w = do_bt = do_where

    def print_stack_trace(self, *count: Any) -> None:
        """Print the stack. In ranks, frames of installed packages are only counted, except the selected frame."""
        if any(count) or not self.session_host.debugged_thread_name():
            super().print_stack_trace(*count)
            return
        stack = [(entry, self._package_of_frame(index)) for index, entry in enumerate(self.stack)]
        for is_package, same in groupby(stack, key=lambda each: bool(each[1])):
            entries = list(same)
            if is_package:
                self.message(stacks.frame_count_line(package for _, package in entries))
            for entry, _ in () if is_package else entries:
                self.print_stack_entry(entry)

    def _error_exc(self) -> None:
        """Print the error of a typed command; of a UsageError only the text."""
        error = sys.exc_info()[1]
        if isinstance(error, UsageError):
            self.error(str(error))
        else:
            super()._error_exc()  # type: ignore[misc]

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack and the index of the frame to select.

        For an exception in a rank that the user only looks at, select the innermost frame of the project's own files:
        `down` then reaches the library frames.
        """
        stack, index = super().get_stack(f, t)
        if t is None or not self._is_visit:
            return stack, index
        own = (number for number in range(index, -1, -1) if is_project_code(stack[number][0].f_code))
        return stack, next(own, index)

    def _package_of_frame(self, index: int) -> str:
        return "" if index == self.curindex else installed_package_of(self.stack[index][0].f_code.co_filename)

    def _print_answer(self, topic: DebuggerTopic, argument: str) -> None:
        try:
            self.message(self.session_host.answer_command(topic, argument.strip()))
        except DebuggerCommandError as error:
            self.error(str(error))

    # --- other ranks --------------------------------------------------------------------------------------------------

    def do_rank(self, argument: str) -> bool | None:
        """rank R

        Show the stack and the variables of rank R. Commands that continue the program work there, too.
        """
        if not argument.strip().isdecimal():
            self.error(f"rank is {argument.strip()!r}, expected a number, as in `rank 0`")
            return None
        if self.session_host.debugged_thread_name() == f"rank {int(argument)}":
            self.print_stack_entry(self.stack[self.curindex])
            return None
        if self._is_visit:
            self._visit_ended_by = f"rank {int(argument)}"
            return True
        visited = self.session_host.visit_rank(int(argument))
        if visited.problem:
            self.error(visited.problem)
        elif visited.then:
            return self.onecmd(visited.then)
        return None

    # --- the run ------------------------------------------------------------------------------------------------------

    def do_next(self, arg: str) -> bool | None:
        """n(ext) [call]

        Continue to the next line of this function, or to this rank's next communication call.
        """
        return self._continue_to_goal("next call") if arg.strip() == "call" else super().do_next(arg)

    do_n = do_next

    def do_until(self, arg: str) -> bool | None:
        """unt(il) [lineno | call OPERATION #N]

        Continue to a line after this one, or to where a rank makes a call, as in `until call all_reduce #9`.
        """
        return self._continue_to_goal(f"until {arg}") if arg.strip().startswith("call") else super().do_until(arg)

    do_unt = do_until

    def do_switch(self, argument: str) -> bool | None:
        """switch R

        Run rank R as soon as the running rank reaches a choice point, and pause where rank R runs next.
        """
        return self._continue_to_goal(f"switch {argument}")

    def do_back(self, argument: str) -> bool | None:
        """back [call]

        Go to the previous step, or to this rank's latest call, by running the program again up to there.
        """
        return self._continue_to_goal(f"back {argument}")

    def do_save(self, argument: str) -> None:
        """save [FILE.toml]

        Show the command that replays the choices made so far, or save them as a scenario.
        """
        self._send_director_command(f"save {argument}")

    def do_run(self, arg: str) -> None:
        """run, restart

        Not available here: these commands restart a program that pdb itself started. `back` runs the program again.
        """
        self.error("cannot restart a run here: type q and start `ddpsim debug` again, or go `back`")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact

        Start an interactive interpreter with the variables of this frame; Ctrl-D leaves it.
        """
        if isinstance(self.stdin, DebuggerStream) and self.curframe is not None:
            DebuggerConsole({**self.curframe.f_globals, **self.curframe_locals}, self.stdin).run()
        else:
            super().do_interact(arg)

    def _continue_to_goal(self, command: str) -> bool | None:
        return self.do_continue("") if self._send_director_command(command.strip()) else None

    def _send_director_command(self, command: str) -> bool:
        """Carry out a command that steers the run, such as `switch`. Return False if it cannot be carried out."""
        try:
            reply = self.session_host.run_director_command(command)
        except DebuggerCommandError as error:
            self.error(str(error))
            return False
        if reply:
            self.message(reply)
        return True

    # --- continuing ---------------------------------------------------------------------------------------------------

    def onecmd(self, line: str) -> bool:
        """Carry out a typed command.

        If it continues a rank that the user only looks at, the paused rank continues instead.
        """
        is_over = bool(super().onecmd(line))
        if is_over and self._is_visit and not self._visit_ended_by:
            self._visit_ended_by = "quit" if self.quitting else "continue"
            # After n, s and similar commands, pause where they say when the rank runs again.
            if not self.quitting and (self.stoplineno != -1 or self.breaks):
                self._trace_program()
            self.quitting = False
        return is_over

    def _trace_program(self) -> None:
        """Trace this thread from the current frame of its program on."""
        for frame in frames_outwards(stacks.program_frame(sys._getframe())):
            frame.f_trace = self.trace_dispatch
        sys.settrace(self.trace_dispatch)
