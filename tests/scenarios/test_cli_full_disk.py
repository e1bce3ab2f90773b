"""A disk that is full costs the files, and nothing else: what came of a run was said before."""

import errno
import os

import pytest

from ddpsim.simulator import whole_file

SENDS = "send-send"


@pytest.fixture
def full_disk(monkeypatch):
    """No file can be written to its end."""

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole_file.os, "fsync", refuse)


def test_a_run_whose_report_cannot_be_written_has_told_its_token(ddpsim, full_disk):
    status, out, err = ddpsim("run", SENDS, "--report", "there")
    assert status == 2
    assert "  replay  ddpsim replay send-send s1:" in out
    assert err == "ddpsim: there/report.html cannot be written (No space left on device): give another file\n"
    assert os.listdir("there") == []


def test_what_shrinking_came_to_is_shown_if_it_cannot_be_saved(ddpsim, full_disk):
    status, out, err = ddpsim("shrink", SENDS)
    assert status == 2
    assert out.startswith("# save this as send-send-shrunk.toml\nddpsim = 1\n")
    assert 'scenario = "send-send"\n' in out
    assert err == "ddpsim: send-send-shrunk.toml cannot be written (No space left on device): give a writable file\n"
    assert os.listdir(".") == []
