"""Start the processes of a run with torch's own launcher, and leave no process and no file afterwards.

Note [Forkserver]. A process that imports torch by itself needs seconds. So processes are forked from a multiprocessing
fork server that has already imported it, and are ready in a few milliseconds. The server belongs to the whole process
and may already be running; only the block that started it stops it. Forks share the hash seed of their server, so ranks
that should start with different seeds are forked alternately from two servers.
"""

import contextlib
import gc
import itertools
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ddpsim import UsageError
from ddpsim.scenarios.jobs.rank_report import RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob, set_variable, use_own_compiler_cache
from ddpsim.scenarios.jobs.supervisor import supervise_rank
from ddpsim.simulator.ctrl_c import handle_signals
from ddpsim.simulator.launching.script import program_seeds

_PRELOADED = ["torch", "torch._dynamo", "torch.distributed.launcher.api", "ddpsim.scenarios.running.runner"]
"""Modules that the fork server imports in advance. Creating a DistributedDataParallel or an optimizer would otherwise
import torch._dynamo in each rank."""
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""The signals that torch's launcher handles."""
_QUIET = ("torch.distributed", "torch.multiprocessing")

_SECOND_FORK_SERVER: Any = forkserver.ForkServer()
"""The second fork server. It is a global variable because multiprocessing's own server is, too."""


def launch_job(job: ScenarioJob, world_size: int) -> tuple[RankReport, ...]:
    """Run a job on `world_size` processes of this machine. Raises UsageError if they cannot be started."""
    with keep_fork_servers(alike=job.alike), _fork_from_servers_in_turn(alike=job.alike):
        came_to = _launch_in_folder(job, world_size)
        if isinstance(came_to, str):
            raise UsageError(came_to)
        if came_to is signal.SIGINT:
            raise KeyboardInterrupt
        if isinstance(came_to, signal.Signals):
            raise SystemExit(128 + came_to)
    return came_to


def _launch_in_folder(job: ScenarioJob, world_size: int) -> tuple[RankReport, ...] | signal.Signals | str:
    """Run the processes, and return their reports; or the signal that ended the run early, or the reason why the
    processes could not be started.

    No exception of the launcher leaves this function: its traceback would keep semaphores of multiprocessing alive
    longer than multiprocessing's resource tracker.
    """
    folders = tempfile.TemporaryDirectory(prefix="ddpsim-", ignore_cleanup_errors=True)
    with _restore_process_state(), folders as folder:
        try:
            returned = elastic_launch(_launch_config(world_size, folder), supervise_rank)(job, folder)
        except SignalException as error:
            return error.sigval
        except ChildFailedError as error:
            return _launch_failure_text(error)
        except (RendezvousError, OSError, EOFError) as error:
            text = " ".join(str(error).split())
            return (
                f"{world_size} ranks cannot be started as processes ({type(error).__name__}: {text}), expected a "
                "machine with room for two processes a rank, and a loopback network: take fewer ranks"
            )
    reports: tuple[RankReport, ...] = returned[0]
    return reports


def _launch_config(world_size: int, folder: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id="ddpsim",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # a free port
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _launch_failure_text(error: ChildFailedError) -> str:
    _, failure = error.get_first_failure()
    how = f"exit status {failure.exitcode}" if failure.exitcode >= 0 else f"signal {failure.signal_name()}"
    has_said = os.path.isfile(failure.error_file)  # otherwise torch invents a message
    if failure.exitcode == 1 and not has_said and (script := _main_script()) is not None:
        return (
            f"the process of rank {failure.local_rank} could not load {os.path.basename(script)}, as each does before "
            "it runs its rank, expected a script that can be loaded twice: put what it does under `if __name__ == "
            '"__main__":`'
        )
    message = failure.message if isinstance(failure.message, str) else str(failure.message.get("message", ""))
    said = re.sub(r"^.*?\b(\w*Error: )", r"\1", " ".join(message.split()))
    because = f" ({said})" if has_said else ""
    who = f"the supervisor of rank {failure.local_rank}"
    return f"{who} ended with {how}{because}, but it has to outlive the rank: start the run again"


@contextmanager
def keep_fork_servers(*, alike: bool = False) -> Iterator[None]:
    """Keep the fork servers for all runs in the block; see Note [Forkserver].

    Raises UsageError if processes cannot load the main script.
    """
    _check_main_script()
    # The folder is removed last: the servers may still be loading torch, which makes it again.
    with use_own_compiler_cache(), _run_fork_servers(alike):
        yield


@contextmanager
def _run_fork_servers(alike: bool) -> Iterator[None]:
    # Private API: multiprocessing has no other way to stop its servers, and its own tests do the same.
    tracker: Any = resource_tracker._resource_tracker
    had_tracker = tracker._fd is not None
    started = []
    try:
        for server, seed in zip(_fork_servers(), program_seeds(alike).hash_seeds, strict=False):
            if server._forkserver_pid is None:
                started.append(server)
                _start_fork_server(server, seed)
        yield
    except BaseException:
        for server in started:
            if server._forkserver_pid is not None:
                os.kill(server._forkserver_pid, signal.SIGTERM)  # it may still be loading torch
        raise
    finally:
        gc.collect()  # objects that still hold a semaphore
        for server in started:
            server._stop()
        if not had_tracker and not multiprocessing.active_children():  # the tracker ends with the last of them
            tracker._stop()


def _fork_servers() -> tuple[Any, Any]:
    """Return multiprocessing's own fork server, and the second server with another hash seed."""
    own: Any = forkserver
    return own._forkserver, _SECOND_FORK_SERVER


def _start_fork_server(server: Any, hash_seed: int) -> None:
    server.set_forkserver_preload(_PRELOADED)
    # A terminal sends Ctrl-C to all processes, and this one ends the server. The C++ code of torch logs errors only.
    with (
        handle_signals(signal.SIG_IGN, signal.SIGINT),
        set_variable("TORCH_CPP_LOG_LEVEL", "ERROR"),
        set_variable("PYTHONHASHSEED", str(hash_seed)),
    ):
        server.ensure_running()


@contextmanager
def _fork_from_servers_in_turn(*, alike: bool) -> Iterator[None]:
    """In this block, fork neighbouring ranks from servers with different hash seeds, unless all should be alike."""
    running = [server for server in _fork_servers() if server._forkserver_pid is not None]
    if alike or len(running) == 1:
        yield
        return
    module: Any = forkserver
    original, in_turn = module.connect_to_new_process, itertools.cycle(running)
    module.connect_to_new_process = lambda files: next(in_turn).connect_to_new_process(files)
    try:
        yield
    finally:
        module.connect_to_new_process = original


def _check_main_script() -> None:
    """Raise UsageError for a main script that other processes cannot load. Exit if this process is loading it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # it has no `__main__` guard; the process that started this one reports it
    if (script := _main_script()) is not None and not os.path.isfile(script):
        raise UsageError(
            f"the script that starts the run is {os.path.basename(script)}, which other processes cannot load, "
            "expected a file: save it into one, and run that"
        )


def _main_script() -> str | None:
    """Return the main script, which the processes load first; None if this process runs a module or `python -c`."""
    main = sys.modules["__main__"]
    return None if getattr(main, "__spec__", None) else getattr(main, "__file__", None)


@contextmanager
def _restore_process_state() -> Iterator[None]:
    """In this block, silence the messages of torch's launcher. Afterwards, restore signal handlers and environment."""
    environment = dict(os.environ)
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith(_QUIET)]
    disabled = {logger: logger.disabled for logger in loggers}
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in disabled.items():
            logger.disabled = was_disabled
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for name in [name for name in os.environ if name not in environment]:
            del os.environ[name]
        for name in [name for name, value in environment.items() if os.environ.get(name) != value]:
            with contextlib.suppress(OSError):
                os.environ[name] = environment[name]
