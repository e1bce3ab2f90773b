"""`python -m scenarios.worker`: ranks started by torchrun on two nodes, or by hand; and runs ended from outside."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.processes.conftest import PROGRAMS, processes_of

LONGEST_SECONDS = 120


def start(stack, folder, *words, **variables):
    """Start a Python process with these words, in a session of its own that does not outlive the test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**environment, "TMPDIR": str(folder), **variables},
        cwd=PROGRAMS.parents[2],
    )
    stack.enter_context(process)
    stack.callback(end_session, process.pid)
    return process


def end_session(session):
    if processes_of(session):
        os.killpg(session, signal.SIGKILL)


def has_ended(session):
    """True once nothing of a session runs, which may take a moment."""
    end = time.monotonic() + LONGEST_SECONDS
    while processes_of(session) and time.monotonic() < end:
        time.sleep(0.05)
    return not processes_of(session)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_nodes(stack, tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    words = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1", "-m", "scenarios.worker"]
    words += ["both-send-first", "--timeout", "1"]
    agents = [start(stack, tmp_path, *words) for _ in range(2)]
    outputs = [agent.communicate(timeout=LONGEST_SECONDS) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    quiet, told = sorted(output for output, _ in outputs)
    assert quiet == ""
    lines = told.splitlines()
    assert lines[0] == "both-send-first  world size 2  on processes"
    assert [line.split()[1] for line in lines if " in both_send_first, for " in line] == ["0", "1"]
    assert lines[-1] == "as expected: hung (expected fail, deadlock.cycle, ranks 0, 1)"
    assert all(has_ended(agent.pid) for agent in agents)


def test_by_hand_with_a_port_in_use(stack, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        worker = start(stack, tmp_path, "-m", "scenarios.worker", "both-send-first", **variables)
        _, errors = worker.communicate(timeout=LONGEST_SECONDS)
    line = errors.rstrip("\n")  # one, and nothing of torch's beside it
    assert line.startswith(f"ddpsim: rank 0 cannot open the store at 127.0.0.1:{port} (")
    assert re.search(r"expected a free port: set MASTER_ADDR and MASTER_PORT to one.*$", line)
    assert "\n" not in line
    assert worker.returncode == 2
    assert has_ended(worker.pid)


def test_without_a_launcher(stack, tmp_path):
    worker = start(stack, tmp_path, "-m", "scenarios.worker", "both-send-first")
    _, errors = worker.communicate(timeout=LONGEST_SECONDS)
    assert worker.returncode == 2
    (line,) = errors.splitlines()
    assert line.startswith("ddpsim: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set, expected torchrun to set them")


def test_supervisor_that_dies(stack, tmp_path):
    words = ["run", f"{PROGRAMS}:kills_its_supervisor", "--world-size", "2", "--transport", "processes"]
    command = start(stack, tmp_path, "-m", "scenarios", *words)
    _, errors = command.communicate(timeout=LONGEST_SECONDS)
    (line,) = errors.splitlines()
    assert line.startswith("ddpsim: the supervisor of rank 1 ended with signal SIGKILL (")
    assert command.returncode == 2
    assert has_ended(command.pid)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_outlives_the_command(stack, tmp_path, number, status):
    words = ["run", f"{PROGRAMS}:says_so_and_hangs", "--world-size", "2", "--transport", "processes"]
    command = start(stack, tmp_path, "-m", "scenarios", *words, "--timeout", "600")
    assert command.stdout is not None
    assert command.stdout.readline() == "hanging\n"
    if number is signal.SIGINT:
        os.killpg(command.pid, number)  # as a terminal does
    else:
        command.send_signal(number)
    output, errors = command.communicate(timeout=LONGEST_SECONDS)
    assert command.returncode == status
    assert has_ended(command.pid)
    assert output == ""
    if number is not signal.SIGKILL:
        assert errors.strip() in ("", "Aborted.")
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []
