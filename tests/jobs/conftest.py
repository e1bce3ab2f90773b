"""What the tests of real processes share: the server that processes are forked from, and programs by name."""

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.jobs.job_launcher import keep_fork_servers

PROGRAMS = Path(__file__).with_name("programs.py")


IN_CI = {
    "test_returns_come_back",
    "test_killed_rank_is_named",
    "test_hang_tells_where_each_rank_stands",
    "test_ranks_start_unlike",
    "test_join_trains_what_it_trains_in_memory[uneven-linear-ddp]",
    "test_what_fails_in_memory_fails[exception-on-one-rank-rank_error, rank 1-torch]",
    "test_nothing_is_left_behind[reduces_alone-1.0]",
    "test_run",
}
"""One of each: a return, an end, a hang, a start, a training, an error, what is left, the console.

The others are variants of these; none of them looks at what the simulator does with its ranks.
"""


def pytest_itemcollected(item):
    if {"server", "stack"} & {*item.fixturenames}:  # it starts processes
        item.add_marker(pytest.mark.tier("ci" if item.name in IN_CI else "nightly"))


@pytest.fixture(scope="session")
def server():
    """Without it each run would load torch anew."""
    with keep_fork_servers():
        yield


@pytest.fixture
def run(server):
    """Run a program of this folder on real processes."""

    def run(name, *, world_size=2, timeout_seconds=30.0, engine="torch", alike=False):
        return run_scenario(
            replace(load(f"{PROGRAMS}:{name}"), alike=alike),
            engine,
            transport="processes",
            world_size=world_size,
            timeout_seconds=timeout_seconds,
        )

    return run


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Where temporary files of this process and of those it starts go."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def processes_of(session):
    """The command lines of what runs in the session that a process has started."""
    return [line for process in psutil.process_iter() if (line := command(process)) and _session(process) == session]


def has_ended(session, seconds=120):
    """True once nothing of a session runs, which may take a moment."""
    return have_ended(lambda: processes_of(session), seconds)


def have_ended(processes, seconds=120):
    """True once there are none of these."""
    end = time.monotonic() + seconds
    while processes() and time.monotonic() < end:
        time.sleep(0.05)
    return not processes()


def children():
    """The processes that this one has started, and theirs: their numbers."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def command(process):
    """The command line of a process; empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _session(process):
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None
