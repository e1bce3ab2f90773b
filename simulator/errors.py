"""The exceptions of the simulator, all derived from `SimulatorError`.

An exception that a rank's program raises is never wrapped: `Result.errors` contains the exception unchanged.
"""

import sys
import traceback


class SimulatorError(Exception):
    """Base class of all exceptions that the simulator raises."""


class UsageError(SimulatorError, ValueError):
    """The caller passed a wrong argument, or called at a wrong time. The text is one line."""


class ReplayError(UsageError):
    """A replay token is damaged, has another version, or was recorded for another program."""


class ReplayDivergedError(SimulatorError):
    """A recorded choice is not possible in the replayed program; the text shows both runs."""

    def __init__(
        self,
        text: str,
        *,
        choice: int = 0,
        choice_points: int = 0,
        rank: int | None = None,
        answer: int = 0,
        options: tuple[int, ...] = (),
    ) -> None:
        super().__init__(text)
        self.choice = choice
        """The number of choices in which the run followed the recording."""
        self.choice_points = choice_points
        """The number of choice points before the impossible choice."""
        self.rank = rank
        """The rank that was running at the impossible choice; None if the run ended before the recording did."""
        self.answer = answer
        """The recorded choice: an index into the options of the recorded run."""
        self.options = options
        """The ranks that the replay can choose there, in order; () if the run had ended."""


class VerdictError(SimulatorError, AssertionError):
    """The exception of `raise_for_verdict` for a run that did not pass. Its text is the whole diagnosis."""


class InjectedCrashError(SimulatorError):
    """The exception that a `Crash` fault raises inside a rank."""


class RankLostError(SimulatorError):
    """The process of a rank ended without a report: it was killed, crashed in native code, or called os._exit."""

    exit_code = 1
    """The exit code of the process, as multiprocessing defines it."""


class InternalError(SimulatorError):
    """A bug of ddpsim; please report it. `make_internal_error` makes the text, a bug report."""


_REPORT = "internal error of ddpsim, please report it with the lines below and the output of `ddpsim doctor`"

_MISTAKES = (AssertionError, AttributeError, IndexError, KeyError, NameError)
"""The types of exceptions that Python raises for mistakes in code."""

_PASSES_ERRORS_ON = tuple(
    f"ddpsim.simulator.{part}"
    for part in ("debugging", "rank_processes.external_effects", "runtime.isolation", "runtime.threads", "virtual_gpus")
)
"""Modules of ddpsim whose functions replace functions of Python and torch, and pass on what those raise."""


def is_internal_error(error: BaseException) -> bool:
    """Return True for an exception of a rank that is a bug of ddpsim.

    These are InternalErrors, failed assertions of the simulator, and errors that Python raised in a line of the
    simulator. An error that a `raise` statement of the simulator raises is intended for the program.
    """
    if isinstance(error, SimulatorError):
        return isinstance(error, InternalError)
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if not isinstance(error, _MISTAKES) or innermost is None:
        return False
    module = str(innermost.tb_frame.f_globals.get("__name__"))
    if not module.startswith("ddpsim.simulator.") or module.startswith(_PASSES_ERRORS_ON):
        return False
    if isinstance(error, AssertionError):  # a function that names the class raises it as torch does
        return "AssertionError" not in innermost.tb_frame.f_code.co_names
    import opcode

    statement = opcode.opname[innermost.tb_frame.f_code.co_code[innermost.tb_lasti]]
    return statement not in ("RAISE_VARARGS", "RERAISE")


def is_unexpected_error(error: BaseException) -> bool:
    """Return True if an exception that leaves a run, a command or a pytest hook shows a bug of ddpsim.

    It must come from a line of ddpsim, or from Python's library called there. A lack of memory or files is no bug, nor
    is an exception of ddpsim's own classes, such as RedundantRun, nor BdbQuit, by which a debugger ends a run.
    """
    if isinstance(error, InternalError):
        return True
    if type(error).__module__.startswith(("ddpsim.", "bdb")) or not isinstance(error, Exception):
        return False
    if isinstance(error, (SimulatorError, MemoryError, OSError, RecursionError)):
        return False
    names = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = next((name for name in reversed(names) if name.split(".")[0] not in sys.stdlib_module_names), "")
    return innermost.startswith("ddpsim.") and not innermost.startswith("ddpsim.scenarios.zoo.")


def make_internal_error(error: BaseException, where: str) -> InternalError:
    """Return the bug report for an exception, with its process, traceback and versions. An InternalError that already
    has a report is returned unchanged."""
    if isinstance(error, InternalError) and str(error).startswith(_REPORT):
        return error
    import platform
    from importlib import metadata  # slow to import, and rarely needed

    torch = getattr(sys.modules.get("torch"), "__version__", "not loaded")
    return InternalError(
        f"{_REPORT}: {type(error).__name__}: {error} (in {where})\n"
        f"{''.join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()}\n"
        f"ddpsim {metadata.version('ddpsim')}, torch {torch}, Python {platform.python_version()}, {platform.platform()}"
    )


def error_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    message = error_message(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def error_message(error: BaseException) -> str:
    """Return an exception's message."""
    try:
        return str(error).strip()
    except (Exception, SystemExit):  # the message is the user's code, too
        return "<its message cannot be printed>"
