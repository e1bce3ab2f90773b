"""The entry point of `ddpsim`: its commands, and the message and exit status of an error.

The commands import what needs torch when they run, because `--help` and a mistyped option should answer at once.
"""

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.bench import bench
from ddpsim.scenarios.cli.compare import compare
from ddpsim.scenarios.cli.crash import crash
from ddpsim.scenarios.cli.debug import debug
from ddpsim.scenarios.cli.diagnose import diagnose
from ddpsim.scenarios.cli.doctor import doctor
from ddpsim.scenarios.cli.explore import explore
from ddpsim.scenarios.cli.fuzz import fuzz
from ddpsim.scenarios.cli.help import GroupedCommand
from ddpsim.scenarios.cli.listing import list_scenarios
from ddpsim.scenarios.cli.program_words import (
    join_program_into_one_word,
    multiply_ranks_by_hosts,
    start_fork_servers,
    takes_value_by_option,
)
from ddpsim.scenarios.cli.replay import replay
from ddpsim.scenarios.cli.report import report
from ddpsim.scenarios.cli.run import run
from ddpsim.scenarios.cli.serve import serve
from ddpsim.scenarios.cli.shrink import shrink
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.cli.test import run_suite
from ddpsim.scenarios.cli.zoo import zoo
from ddpsim.scenarios.names import describe_shadowing_file
from ddpsim.simulator.ctrl_c import sigterm_as_ctrl_c
from ddpsim.simulator.errors import ReplayDivergedError, UsageError, is_unexpected_error, make_internal_error
from ddpsim.simulator.imports import torch_too_old_message

_OF_PROGRAMS = {command.__name__: command for command in (run, explore, fuzz, compare, replay, debug, shrink, crash)}
"""The commands that accept a training program and its arguments, by command name."""

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(
    arguments: Sequence[str] | None = None, *, own_hash_seed: int | None = None, began: float | None = None
) -> int:
    """Run `ddpsim` with these command-line arguments, by default those of this process, and return the exit status.

    `own_hash_seed`: that of this process, if ranks may be forked from it. `began`: when the user started the command.
    """
    output.BEGAN.set(began)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end the run
    with sigterm_as_ctrl_c() as received:
        status = _run_command_line(arguments, own_hash_seed)
    if status == ExitStatus.INTERRUPTED:
        status = ExitStatus.TERMINATED if received else ExitStatus.INTERRUPTED
        output.print_note("ended by SIGTERM" if received else "interrupted")
    if arguments is None:
        _quiet_ctrl_c_at_exit()
    return status


def _run_command_line(arguments: Sequence[str] | None, own_hash_seed: int | None) -> int:
    """Run the command that the arguments name. Print the message of an error. Return the exit status."""
    if line := describe_shadowing_file():
        output.print_note(line)
        return ExitStatus.USAGE_ERROR
    try:
        words = _join_program_words(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        start_fork_servers(words, own_hash_seed)
        status = app(args=words, prog_name="ddpsim", standalone_mode=False, obj=main)
    except KeyboardInterrupt:  # a second one, while typer turns the first into a status
        return ExitStatus.INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "BdbQuit":  # compared by name: only a debugger imports bdb
            output.print_note("the run was ended in a debugger")
            return ExitStatus.INTERRUPTED
        if (message := _usage_message(error)) is not None:
            output.print_note(message)
            return ExitStatus.USAGE_ERROR
        if not is_unexpected_error(error):
            raise
        output.print_note(str(make_internal_error(error, "the command")))
        return ExitStatus.OTHERWISE
    return int(status or 0)


def _join_program_words(words: Sequence[str]) -> list[str]:
    if not words or words[0] not in _OF_PROGRAMS:
        return list(words)
    options = takes_value_by_option(_OF_PROGRAMS[words[0]])
    taking_values = [name for name, takes_value in options.items() if takes_value]
    return multiply_ranks_by_hosts(join_program_into_one_word(words, taking_values))


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata  # slow to import: half the time of `--help`

        output.print_text(f"ddpsim {metadata.version('ddpsim')}")
        raise typer.Exit


@app.callback(epilog="Example: ddpsim run uneven-inputs-without-join")
def ddpsim(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run all ranks of a training on one machine, under a deterministic scheduler, and report what goes wrong.

    Exit status: 0 as expected, 1 not as expected, 2 usage error, 3 unknown.
    """


app.command("list", epilog="Example: ddpsim list --tag join")(list_scenarios)
app.command(epilog="Example: ddpsim run uneven-inputs --engine both --world-size 8 --policy random --seed 3")(run)
app.command(epilog="Example: ddpsim replay send-send s1:0:e2f90957 --step")(replay)
app.command(epilog="Example: ddpsim debug uneven-inputs-without-join --finding")(debug)
app.command(epilog="Example: ddpsim explore results-taken-in-order-of-arrival --keep-going")(explore)
app.command(epilog="Example: ddpsim fuzz --generate --seconds 600 --jobs 4")(fuzz)
app.command(epilog="Example: ddpsim compare --world-size 8 train.py --epochs 1")(compare)
app.command(epilog="Example: ddpsim shrink uneven-inputs-without-join --world-size 16 -o smallest.toml")(shrink)
app.command(epilog="Example: ddpsim crash --nproc-per-node 2 train.py --epochs 1")(crash)
app.command(epilog="Example: ddpsim zoo --tag cycle --engine both")(zoo)
app.command(
    "test",
    epilog="Example: ddpsim test --ranks 2 tests/distributed -x",
    context_settings={"ignore_unknown_options": True},
)(run_suite)
app.command(epilog="Example: ddpsim diagnose dumps/ --report hang")(diagnose)
app.command(epilog="Example: ddpsim report run/result.json --html -o shared.html")(report)
app.command(epilog="Example: ddpsim bench join-baseline --world-size 4 --world-size 32")(bench)
app.command(epilog="Example: ddpsim serve --idle 60")(serve)
app.command(epilog="Example: ddpsim doctor --json")(doctor)
for _command in app.registered_commands:
    if _command.callback in _OF_PROGRAMS.values():
        _command.cls = GroupedCommand


def _quiet_ctrl_c_at_exit() -> None:
    """Make Ctrl-C print no traceback while this process exits: Ctrl-C then ends the process, or is ignored."""
    if callable(signal.getsignal(signal.SIGINT)):  # else SIGINT is ignored already
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(ExitStatus.INTERRUPTED))
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # runs before torch's exit functions


def _usage_message(error: Exception) -> str | None:
    """Return one line on an error that the user can correct; None for any other error."""
    if isinstance(error, ImportError) and (line := describe_shadowing_file()):
        return line  # a user's file hides a module of this package
    if isinstance(error, (ImportError, AttributeError)) and (line := torch_too_old_message()):
        return line  # torch lacks what we import
    # typer contains a copy of click or imports it, depending on its version: so its errors are found by attribute.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        context = getattr(error, "ctx", None)
        message = " ".join(str(error.format_message()).split()).rstrip(".?")
        if isinstance(commands := getattr(getattr(context, "command", None), "commands", None), dict):
            message += f"; expected one of {', '.join(commands)}" if "ommand" in message else ""
        return f"{message}; see `{context.command_path if context else 'ddpsim'} --help`"
    if isinstance(error, (UsageError, ReplayDivergedError)):
        return str(error)
    # `ddpsim report` renders without the simulator, and other commands without reports.
    of_reports = sys.modules.get("ddpsim.reports.document")
    return str(error) if of_reports is not None and isinstance(error, of_reports.ReportError) else None
