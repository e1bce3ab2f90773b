"""How the process of a command that runs a program begins and ends.

If there is a standing server (`ddpsim serve`), that runs the command. Otherwise the command restarts with the hash seed
of ranks, which Python reads at its start: ranks can then be forked from it.
"""

import atexit
import os
import sys
import threading
import time
from contextlib import suppress

_BEFORE = "DDPSIM_HASH_SEED_BEFORE"
"""The variable in which the restarted command finds the PYTHONHASHSEED that it has to put back."""

_SEED = "PYTHONHASHSEED"

_RUN_PROGRAMS = ("run", "explore", "compare", "replay", "debug", "shrink", "crash")


def begin_process() -> int | None:
    """Run the command on a standing server, or start this process again with the hash seed of ranks, if it runs a
    program; else return its hash seed, which is None if Python has drawn it."""
    words = sys.argv[1:]
    has_program = any(each == "-m" or each.endswith(".py") for each in words)
    runs_program = has_program and words[0] in _RUN_PROGRAMS
    is_as_started = sys.orig_argv[len(sys.orig_argv) - len(words) :] == words and bool(sys.executable)
    if not (runs_program or words[:1] == ["serve"]) or not is_as_started or _BEFORE in os.environ:
        return _own_hash_seed()
    is_plain = not sys.flags.ignore_environment and not _is_watched()
    if runs_program and words[0] != "debug" and is_plain and _may_be_served():
        from ddpsim.scenarios.cli.standing_client import run_on_server

        if (status := run_on_server(words, socket_folder(), process_start())) is not None:
            os._exit(status)
    before = os.environ.get(_SEED, "")
    if before.isdecimal():
        return _own_hash_seed()
    from ddpsim.simulator.choices import HASH_SEEDS

    if is_plain:
        with suppress(OSError):
            sys.stdout.flush()
            environment = {**os.environ, _SEED: str(HASH_SEEDS[0]), _BEFORE: before}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    return None


def _may_be_served() -> bool:
    wanted = os.environ.get("DDPSIM_SERVE", "")
    return wanted == "1" or (wanted != "0" and os.path.isdir(socket_folder()))


def socket_folder() -> str:
    """Return the folder of the sockets of this user's servers."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "ddpsim-serve")


def _is_watched() -> bool:
    """True under a tracer, a profiler or a debugger, which has to see the whole process to its end."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return sys.gettrace() is not None or sys.getprofile() is not None or any(tools)


def _own_hash_seed() -> int | None:
    """Return the hash seed of this process if it was given to it, and undo what a restart left in the environment."""
    given = os.environ.get(_SEED, "")
    if (before := os.environ.pop(_BEFORE, None)) is not None:
        del os.environ[_SEED]
        os.environ.update({_SEED: before} if before else {})
    return int(given) if given.isdecimal() and not sys.flags.ignore_environment else None


def process_start() -> float | None:
    """Return when this process started, by `time.perf_counter`; None where the system does not say so as Linux does."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.perf_counter() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None


def exit_at_once(status: int) -> None:
    """End this process as Python does, but without taking torch apart, if it has run a program in other processes."""
    servers = sys.modules.get("ddpsim.simulator.launching.servers")
    is_done = servers is not None and servers.STANDING.was_prepared and threading.active_count() == 1
    if is_done and not _is_watched() and sys.stdout is not None and sys.stderr is not None:
        end_process(status)


def end_process(status: int) -> None:
    """Run what is registered for the end of this process, and end it. Returns if its output cannot be written."""
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
