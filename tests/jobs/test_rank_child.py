"""What a supervisor makes of a rank's process: its stderr and its death; no process is started."""

import multiprocessing
import os

import pytest

from ddpsim.scenarios.jobs.job_rank import RankMessage
from ddpsim.scenarios.jobs.supervisor import RankChild
from ddpsim.scenarios.jobs.supervisor_notes import RankStarter


@pytest.fixture
def child():
    """A child without a process: its line and its stderr are written to by the test."""
    ours, its = multiprocessing.Pipe()
    stderr, its_stderr = os.pipe()
    child = RankChild(0, 0, ours, stderr, RankStarter(os.getppid(), None))
    yield child, its, its_stderr
    for end in (ours, its):
        end.close()
    for end in (stderr, its_stderr):
        os.close(end)


LOGS = [
    "[rank0]:[W1121 17:50:00.123 file.cpp:12] a warning",
    "[E1121 17:50:00.123 file.cpp:12] an error",
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at pair.cc:456] 8 vs 4",
]


def test_what_torch_logs_is_kept_and_not_shown(child, capfd):
    child, _, stderr = child
    os.write(stderr, "\n".join(["my own line", *LOGS, "another", ""]).encode())
    child.forward_stderr()
    assert capfd.readouterr().err == "my own line\nanother\n"
    assert child.last_lines == [*LOGS[1:], "another"]


def test_a_line_comes_in_parts_and_its_end_with_the_death(child, capfd):
    child, _, stderr = child
    os.write(stderr, b"one ")
    child.forward_stderr()
    os.write(stderr, b"line\nthe rest")
    child.forward_stderr()
    assert capfd.readouterr().err == "one line\n"
    child.status = 0
    child.forward_stderr()
    assert capfd.readouterr().err == "the rest\n"


def test_what_faulthandler_writes_is_a_stack(child, capfd):
    child, _, stderr = child
    os.write(stderr, b"before\nFatal Python error: Aborted\n\nThread 0x1:\n")
    child.forward_stderr()
    assert capfd.readouterr().err == "before\n"
    assert (child.last_lines, child.last_stack) == (["before"], ["", "Thread 0x1:"])


@pytest.mark.parametrize(
    ("status", "text"), [(0, "exit status 0"), (3 << 8, "exit status 3"), (9, "signal SIGKILL"), (63, "signal 63")]
)
def test_death(child, status, text):
    child, _, _ = child
    child.status = status
    assert child.describe_death() == text


def test_everything_that_was_said_is_heard(child):
    child, its, _ = child
    assert child.receive_messages() == []
    its.send(RankMessage.STARTED)
    its.send(RankMessage.ALIVE)
    assert child.receive_messages() == [RankMessage.STARTED, RankMessage.ALIVE]
    its.close()
    assert child.receive_messages() == []
    child.send_message(RankMessage.END)  # nobody listens


def test_starter(tmp_path):
    RankStarter(os.getppid(), None).check_is_alive()
    RankStarter(os.getppid(), str(tmp_path)).check_is_alive()
    with pytest.raises(SystemExit):
        RankStarter(os.getppid(), str(tmp_path / "gone")).check_is_alive()
    with pytest.raises(SystemExit):
        RankStarter(-1, None).check_is_alive()
