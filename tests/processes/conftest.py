"""What the tests of real processes share: the server that processes are forked from, and programs by name."""

import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.processes.launcher import standing_by

PROGRAMS = Path(__file__).with_name("programs.py")


def pytest_itemcollected(item):
    if {"server", "stack"} & {*item.fixturenames}:  # it starts processes
        item.add_marker(pytest.mark.tier("ci"))


@pytest.fixture(scope="session")
def server():
    """Without it each run would load torch anew."""
    with standing_by():
        yield


@pytest.fixture
def run(server):
    """Run a program of this folder on real processes."""

    def run(name, *, world_size=2, timeout_seconds=30.0, engine="torch"):
        return run_scenario(
            load(f"{PROGRAMS}:{name}"),
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
    end = time.monotonic() + seconds
    while processes_of(session) and time.monotonic() < end:
        time.sleep(0.05)
    return not processes_of(session)


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
