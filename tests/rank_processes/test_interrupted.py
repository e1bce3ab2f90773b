"""A command that is interrupted or killed leaves no process behind: neither its ranks nor what they have started."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")

PROGRAM = """
import os, subprocess, sys
import torch.distributed as dist

try:
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        child = subprocess.Popen(["sleep", "300"])
        print(child.pid, os.getpid(), flush=True)
        while True:
            pass
    dist.barrier()
finally:
    open('left-' + os.environ['RANK'], 'w').close()
"""


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds):
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "ended"),
    sweep(
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
        lambda case: case[0] is not signal.SIGTERM,
    ),
)
def test_nothing_is_left(tmp_path, number, ended):
    is_unwound = ended > 0
    (tmp_path / "train.py").write_text(PROGRAM)
    options = [] if is_unwound else ["--alike"]  # from one server
    command = subprocess.Popen(
        [sys.executable, "-m", "ddpsim", "run", "--world-size", "2", *options, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        pids = [int(number) for number in command.stdout.readline().split()]
        assert len(pids) == 2
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        pids += [int(number) for number in children]  # the servers that ranks are forked from, and the guardian
        assert len(pids) >= 6 - len(options)
        assert all(map(is_there, pids))
        command.send_signal(number)
        status = command.wait(300)
    finally:
        command.kill()
        command.communicate()
    assert status == ended
    eventually(lambda: not any(map(is_there, pids)))
    assert {path.name for path in tmp_path.glob("left-*")} == ({"left-0", "left-1"} if is_unwound else set())
