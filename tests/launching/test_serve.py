"""A standing server runs commands as if they had been started by themselves; where it cannot, they are."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ddpsim.scenarios.cli.own_process import socket_folder
from ddpsim.simulator.launching import standing

pytestmark = pytest.mark.tier("ci")

COMMAND = [sys.executable, "-m", "ddpsim"]

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
print(os.getcwd(), os.environ.get("OF_THE_USER"), os.environ.get("PYTHONHASHSEED"), oct(os.umask(0o22)), sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a program; servers are of this test only, in a folder whose path is short enough for a socket."""
    monkeypatch.chdir(tmp_path)
    runtime = tempfile.mkdtemp(prefix="ddpsim-")
    for name in ("PYTHONHASHSEED", "DDPSIM_SERVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text("import os")
    (tmp_path / "train.py").write_text(PROGRAM)
    yield tmp_path
    shutil.rmtree(runtime)


@pytest.fixture
def server(folder):
    """A server of this folder; the socket is its own."""
    with subprocess.Popen([*COMMAND, "serve", "--idle", "5"], stdout=subprocess.PIPE, text=True) as process:
        assert select.select([process.stdout], [], [], 120)[0]
        assert "serves the commands" in process.stdout.readline()
        yield process
        process.terminate()
    assert list(Path(socket_folder()).iterdir()) == []


def run(*words, **options):
    """Run a command; return its exit status, and what it printed, without times."""
    ended = subprocess.run([*COMMAND, "run", "--world-size", "2", *words], capture_output=True, text=True, **options)
    lines = [line.partition("  policy")[0] for line in ended.stdout.splitlines()]
    return ended.returncode, lines, ended.stderr


def commands_of(server):
    """How many commands the server has run: each is a child that it has waited for."""
    return sum(map(int, Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[8:9]))


def test_a_served_command_is_as_one_by_itself(server, folder):
    (folder / "elsewhere").mkdir()
    given = {**os.environ, "OF_THE_USER": "yes"}
    for words, options in (
        (("train.py", "--epochs", "1"), {}),
        (("../train.py",), {"cwd": folder / "elsewhere", "umask": 0o77}),
        (("train.py",), {"env": {**os.environ, "TERM": "dumb"}}),
        (("missing.py",), {}),
    ):
        before = commands_of(server)
        served = run(*words, **options)
        assert commands_of(server) > before
        own = {**options.get("env", os.environ), "DDPSIM_SERVE": "0"}
        assert served == run(*words, **{**options, "env": own})
    before = commands_of(server)
    assert run("train.py", env=given)[0] == 0  # its environment is another, so it runs by itself
    assert commands_of(server) == before


def test_ctrl_c_ends_a_served_command(server, folder):
    (folder / "loops.py").write_text("import time\nprint('begun')\nwhile True: time.monotonic_ns()")
    process = subprocess.Popen(
        [*COMMAND, "run", "--world-size", "2", "loops.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "begun" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "interrupted" in errors


def test_a_server_whose_files_have_changed_ends_and_the_command_runs_by_itself(server, folder):
    (folder / "path" / "sitecustomize.py").write_text("import os, sys")
    assert run("train.py")[0] == 0
    assert server.wait(timeout=60) == 0
    assert run("train.py")[0] == 0


def test_what_is_no_server_of_ours_is_not_used(folder, monkeypatch):
    monkeypatch.setenv("DDPSIM_SERVE", "1")
    place = Path(socket_folder())
    place.mkdir(parents=True, mode=0o755)
    status, lines, errors = run("train.py")
    assert (status, errors.count("\n")) == (0, 1)
    assert errors.startswith(f"ddpsim: no server is used: {place} is not a folder of this user's alone")
    assert lines[-1] == "as expected: pass"
    status = subprocess.run([*COMMAND, "serve"], capture_output=True, text=True)
    assert status.returncode == 2
    assert "the server cannot listen" in status.stderr
    assert status.stderr.count("\n") == 1


def test_a_server_that_says_nothing_sensible(folder, monkeypatch):
    """The command runs by itself: nothing of it was begun."""
    place = Path(socket_folder())
    place.mkdir(parents=True, mode=0o700)
    code = "from ddpsim.simulator.launching.standing import socket_path\nprint(socket_path({!r}))"
    (folder / "path.py").write_text(code.format(str(place)))
    found = subprocess.run([sys.executable, "path.py"], capture_output=True, text=True, check=True).stdout.strip()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(found)
    listener.listen()
    process = subprocess.Popen([*COMMAND, "run", "--world-size", "2", "train.py"], stdout=subprocess.DEVNULL)
    end, _ = listener.accept()
    _, files, _, _ = socket.recv_fds(end, 1 << 16, 8)
    assert len(files) == 4
    words, own, *_ = json.loads(os.pread(files[0], 1 << 20, 0))
    assert (words[-1], own) == ("train.py", str(folder))
    for file in files:
        os.close(file)
    end.close()
    listener.close()
    assert process.wait(timeout=120) == 0


def test_a_server_is_started_by_the_first_command_that_wants_one(folder, monkeypatch):
    monkeypatch.setenv("DDPSIM_SERVE", "1")
    assert run("train.py")[0] == 0
    end = time.monotonic() + 120
    while time.monotonic() < end and not (found := list(Path(socket_folder()).glob("*"))):
        time.sleep(0.1)
    line = standing.connect(found[0])
    assert line is not None
    pid = int.from_bytes(line._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    line.close()
    assert run("train.py")[0] == 0
    os.kill(pid, signal.SIGTERM)


def test_a_server_that_is_stopped_is_not_used(server):
    (path,) = Path(socket_folder()).iterdir()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
        assert standing.connect(path) is None
    finally:
        os.kill(server.pid, signal.SIGCONT)
    line = standing.connect(path)
    assert line is not None
    line.close()
