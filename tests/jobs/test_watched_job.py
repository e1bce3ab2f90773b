"""`ddpsim diagnose --torchrun`: real jobs on this machine, on gloo."""

import os
import subprocess
import sys

import pytest

from ddpsim.scenarios.cli import main
from ddpsim.scenarios.jobs import in_rank
from ddpsim.scenarios.jobs.watched_job import processes_with_variable

HANGS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3 if dist.get_rank() == 1 else 4):
    dist.all_reduce(torch.ones(5))
{}
"""
WAITS = "import time; time.sleep(600)"
RAISES = "raise ValueError(dist.get_rank())"


def diagnosed(folder, program, *options):
    (folder / "train.py").write_text(program)
    words = [sys.executable, "-m", "ddpsim", "diagnose", "--quiet", "8", *options, "--torchrun", "--"]
    words += [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py"]
    told = subprocess.run(words, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    return told.returncode, told.stdout, told.stderr


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("end", [WAITS, RAISES])
def test_a_job_that_hangs_or_fails_is_diagnosed_and_leaves_nothing_behind(tmp_path, end):
    status, out, err = diagnosed(tmp_path, HANGS.format(end))
    assert (status, "rank 1  made no call after all_reduce #2" in out) == (1, True), out + err
    assert "deadlock.missing_rank" in out
    left = [name for name in os.listdir("/proc") if name.isdigit() and _is_of(tmp_path, name)]
    assert left == []


def _is_of(folder, process):
    try:
        return os.readlink(f"/proc/{process}/cwd") == str(folder)
    except OSError:
        return False


@pytest.mark.tier("nightly")
def test_a_job_that_is_right_passes(tmp_path):
    status, out, _ = diagnosed(tmp_path, HANGS.replace("3 if", "4 if").format(""))
    assert (status, "PASS  the matched calls agree in everything that the records contain: 4 collectives" in out) == (
        0,
        True,
    )
    assert "note  the job ended with status 0" in out


@pytest.mark.tier("nightly")
def test_a_job_that_never_rests_is_ended_at_the_limit(tmp_path):
    status, out, _ = diagnosed(tmp_path, HANGS.format("while True: pass"), "--limit", "60")
    assert (status, "note  the job still ran after 60 s, so the job was ended" in out) == (1, True)


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["/no/such/launcher"],
            "/no/such/launcher cannot be run (No such file or directory), expected a command such as",
        ),
        (
            [sys.executable, "-c", ""],
            "the job ended with status 0, and wrote no record, expected ranks that create a process group",
        ),
    ],
)
def test_what_is_no_job_is_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    status = main(["diagnose", "--torchrun", "--", *words])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_processes_are_known_by_their_variable():
    program = "print(1, flush=True); input()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, env={in_rank.FOLDER: "/a b"})
    try:
        assert process.stdout.readline() == b"1\n"  # a process that has only begun shows no environment yet
        assert process.pid in set(processes_with_variable(in_rank.FOLDER, "/a b"))
        assert process.pid not in set(processes_with_variable(in_rank.FOLDER, "/a"))
    finally:
        process.communicate(b"\n")
