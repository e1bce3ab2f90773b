"""How the process of a command that runs a program begins and ends.

It restarts with the hash seed of ranks, which Python reads at its start: ranks can then be forked from it.
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
    """Start this process again with the hash seed of ranks, if its command runs a program; else return its hash seed,
    which is None if Python has drawn it."""
    words = sys.argv[1:]
    has_program = any(each == "-m" or each.endswith(".py") for each in words)
    runs_program = has_program and words[0] in _RUN_PROGRAMS
    is_as_started = sys.orig_argv[len(sys.orig_argv) - len(words) :] == words and bool(sys.executable)
    before = os.environ.get(_SEED, "")
    if not runs_program or not is_as_started or _BEFORE in os.environ or before.isdecimal():
        return _own_hash_seed()
    from ddpsim.simulator.choices import HASH_SEEDS

    if not sys.flags.ignore_environment and not _is_watched():
        with suppress(OSError):
            sys.stdout.flush()
            environment = {**os.environ, _SEED: str(HASH_SEEDS[0]), _BEFORE: before}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    return None


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
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
