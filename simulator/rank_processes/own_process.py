"""Prepares a forked process to be that of a rank or launcher, and ends it as Python ends."""

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import platform
import random
import signal
import socket
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from functools import partial
from inspect import getclosurevars
from typing import Any

import torch

from ddpsim.simulator.hosts import LAUNCHERS, RankHost, common_variables, host_address, host_name
from ddpsim.simulator.rank_processes.private_disks import mount_disks
from ddpsim.simulator.rank_processes.process_config import RankConfig
from ddpsim.simulator.runtime.isolation.python_random import START_SEED, seed_of_rank
from ddpsim.simulator.runtime.isolation.torch_generators import DEFAULT_SEED
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_PR_SET_PDEATHSIG = 1

_OF_PROCESSES = ("concurrent.futures.process", "loky", "joblib.externals.loky")
"""Modules whose executors start processes."""


def make_own_process(rank_config: RankConfig) -> None:
    """Give up the coordinator's resources, set up streams and environment, and end whenever the coordinator ends."""
    at = rank_config.host
    mount_disks(rank_config.disks)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the mounts, which may reset it
    if os.getppid() != rank_config.common.coordinator:  # the coordinator has been killed already
        os._exit(1)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.register_at_fork(after_in_child=rank_config.channel.close)  # forks of the rank must not use its channel
    clear_exit_handlers()
    _redirect_stdin(os.devnull)
    for number, name, file in ((1, "stdout", rank_config.files.output), (2, "stderr", rank_config.files.errors)):
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # a program may open /dev/stdout by name, which writes at 0
        os.dup2(file, number)
        stream = os.fdopen(os.dup(number), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(sys.stderr)  # reports crashes of native code
    torch.set_num_threads(1)
    gc.freeze()  # the end of what the coordinator left may wait for its threads, which are not here
    gc.enable()
    if at.nodes > 1:
        name_host(at)
    if rank_config.common.is_program:
        if not rank_config.common.is_launched:
            os.environ.update(LAUNCHERS[rank_config.common.start.launcher](at))
        if not rank_config.common.is_forked_by_program:
            _reset_python_settings()
            _seed_generators(rank_config)
    else:
        os.environ.update(common_variables(at))
        _seed_generators(rank_config)


def clear_exit_handlers() -> None:
    """Remove the exit handlers of the coordinator from this fork; handlers that the rank registers later do run."""
    atexit._clear()
    finalize: Any = weakref.finalize
    finalize._registry.clear()
    finalize._registered_with_atexit = False  # later finalizers register again
    process: Any = multiprocessing.process
    process._children = set()
    util: Any = multiprocessing.util
    util._finalizer_registry.clear()
    atexit.register(util._exit_function)
    atexit.register(logging.shutdown)


def _redirect_stdin(path: str) -> None:
    """Make standard input a file: ranks cannot share a terminal."""
    file = os.open(path, os.O_RDONLY)
    os.dup2(file, 0)
    os.close(file)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]


def _reset_python_settings() -> None:
    """Reset imports, logs and warnings as if Python had just started: the caller may be a pytest session."""
    sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("_pytest.")]
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    if not sys.warnoptions:
        filters: Any = warnings.filters
        filters[:] = [each for each in filters if each[0] != "error"]
        warnings.simplefilter("default", UserWarning, append=True)  # resets the caches of `warnings`


def _seed_generators(rank_config: RankConfig) -> None:
    """Give the random numbers of a rank the same start in each run."""
    seed = seed_of_torch = seed_of_rank(rank_config.rank)
    if rank_config.common.start.is_alike:
        seed, seed_of_torch = START_SEED, DEFAULT_SEED
    random.seed(seed)
    torch.manual_seed(seed_of_torch)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def name_host(at: RankHost) -> None:
    """Make Python see the name of the rank's host; native code sees that of the machine."""
    real, replaced = os.uname(), ReplacedAttributes()
    names = ["", "0.0.0.0", "::", at.name]
    addresses = {host_name(number): host_address(number) for number in range(at.nodes)}
    replaced.set_attribute(os, "uname", lambda: os.uname_result((real.sysname, at.name, *real[2:])))
    replaced.set_attribute(platform, "_uname_cache", None)
    replaced.set_attribute(socket, "gethostname", lambda: at.name)
    replaced.replace_attribute(
        socket, "getfqdn", lambda original: lambda name="": at.name if name in names else original(name)
    )
    replaced.replace_attribute(
        socket, "gethostbyname", lambda original: lambda host, /: addresses.get(host) or original(host)
    )


def shut_down_process_executors() -> None:
    """End executors that have processes, as Python does before it runs exit handlers."""
    register: Any = threading
    for call in reversed(register._threading_atexits):
        # The function is in a partial or, from Python 3.13 on, in a closure.
        function: Any = call.func if isinstance(call, partial) else getclosurevars(call).nonlocals.get("func", call)
        if function.__module__.startswith(_OF_PROCESSES):
            call()


def flush_streams(*, has_own_files: bool = False) -> None:
    """Flush the streams of the process, and the files that it has opened, which Python would close at its end."""
    # gc skips objects from before the fork, which are frozen: the coordinator flushes its own files.
    everything = gc.get_objects() if has_own_files else []
    kinds = {id(kind): kind for kind in map(type, everything)}  # isinstance would resolve a proxy
    of_files = {number for number, kind in kinds.items() if issubclass(kind, io.IOBase)}
    own = [each for each in everything if id(type(each)) in of_files]
    for stream in (sys.stdout, sys.stderr, *own):
        with suppress(Exception):  # the program may have closed or replaced it
            stream.flush()
