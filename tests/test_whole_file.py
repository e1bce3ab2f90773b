"""Files are written whole or not at all."""

import errno
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpsim import UsageError, reports, scenarios, simulator
from ddpsim.reports.document import ReportError
from ddpsim.reports.report_folder import write_file
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.saving import save_scenario
from ddpsim.simulator import whole_file
from ddpsim.simulator.whole_file import write_atomically


def test_a_file_has_the_new_bytes_and_its_old_mode(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_new_file_has_the_mode_that_any_other_would_have(tmp_path):
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def no_space(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(whole_file.os, "fsync", no_space)
    with pytest.raises(
        ReportError, match=r"^.*trace\.json cannot be written \(No space left on device\): give another file"
    ):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_scenario_that_cannot_be_saved_leaves_the_one_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "kept.toml"
    scenario = load("uneven-inputs-without-join")
    save_scenario(scenario, path)
    before = path.read_bytes()
    monkeypatch.setattr(whole_file.os, "fsync", no_space)
    with pytest.raises(
        UsageError, match=r"kept\.toml cannot be written \(No space left on device\): give a writable file"
    ):
        save_scenario(scenario, path, summary="another")
    assert path.read_bytes() == before


def test_a_link_is_replaced_and_its_target_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert target.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_atomically(link, b"new")
    assert link.is_symlink()


def test_nothing_else_writes_files_for_users():
    own = {"whole_file.py"}
    own |= {"rank_process.py", "servers.py", "launcher.py"}  # pipes, and what torch's launchers read
    own |= {"debugger_desk.py", "watched_job.py", "in_rank.py"}  # the terminal; what a job's ranks leave in a folder
    own |= {"records.py", "private_disks.py", "operation_watch.py"}  # temporary; of the system; as the program would
    own |= {"rank_session.py"}  # the null device
    own |= {"serve.py", "standing_client.py"}  # streams of a command; memory
    writes = re.compile(r"\.write_text\(|\.write_bytes\(|open\([^)\n]*[\"'][wax]b?\+?[\"']")
    folders = [Path(package.__file__).parent for package in (simulator, scenarios, reports)]
    found = {path.name for folder in folders for path in folder.rglob("*.py") if writes.search(path.read_text("utf-8"))}
    assert found == own


_WRITER = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("whole_file", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
path = pathlib.Path(sys.argv[2])
number = 0
while True:
    number += 1
    module.write_atomically(path, str(number % 10).encode() * 200_000)
    if number == 1:
        print("begun", flush=True)
"""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.tier("ci" if seed < 5 else "nightly")) for seed in range(200)],
)
def test_who_is_killed_while_writing_leaves_a_whole_file(seed, tmp_path):
    path = tmp_path / "result.json"
    command = [sys.executable, "-S", "-c", _WRITER, whole_file.__file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"begun\n"
        time.sleep(random.Random(seed).uniform(0, 0.02))  # the moment is the subject
        writer.kill()
    data = path.read_bytes()
    assert len(data) == 200_000
    assert len(set(data)) == 1
