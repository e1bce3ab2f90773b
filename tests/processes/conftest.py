"""What the tests of real processes share: the server that processes are forked from, and programs by name."""

import os
import subprocess
import tempfile
from pathlib import Path

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
    """What runs in the session that a process has started, as lines of `ps`."""
    listing = subprocess.run(["ps", "-eo", "sess=,stat=,pid=,args="], capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=3) for line in listing.stdout.splitlines())
    return [line[3] for line in lines if line[0] == str(session) and not line[1].startswith("Z")]


def children():
    """The processes that this one has started, and theirs."""
    listing = subprocess.run(["ps", "-eo", "ppid=,pid=,args="], capture_output=True, text=True, check=True).stdout
    parents = {}
    for line in listing.splitlines():
        parent, process, text = line.split(maxsplit=2)
        parents.setdefault(int(parent), []).append((int(process), text))
    found, queue = {}, [os.getpid()]
    while queue:
        for process, text in parents.get(queue.pop(), ()):
            found[process] = text
            queue.append(process)
    return {process for process, text in found.items() if not text.startswith("ps ")}
