"""`python -m ddpsim.scenarios.worker`: ranks of torchrun on two nodes, or started by hand; runs ended from outside."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from ddpsim import UsageError
from ddpsim.scenarios import worker
from ddpsim.scenarios.jobs.supervisor_notes import RankStarter, SupervisorStore
from tests.jobs.conftest import PROGRAMS, has_ended, processes_of

LONGEST_SECONDS = 600


def start(stack, folder, *words, stdin=None, **variables):
    """Start a Python process with these words, in a session of its own that does not outlive the test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**environment, "TMPDIR": str(folder), **variables},
        cwd=PROGRAMS.parents[2],
    )
    stack.enter_context(process)
    stack.callback(end_session, process.pid)
    if stdin is not None and process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None  # communicate() would close it again
    return process


def end_session(session):
    if processes_of(session):
        os.killpg(session, signal.SIGKILL)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_hand(rank, world_size, port):
    return {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def on_two_nodes(stack, folder, *words, **variables):
    """The exit statuses of two torchruns, the lines of the one report, and what both wrote to stderr."""
    endpoint = f"127.0.0.1:{free_port()}"
    launch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    launch += ["--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1", "-m", "ddpsim.scenarios.worker"]
    agents = [start(stack, folder, *launch, *words, **variables) for _ in range(2)]
    outputs = [agent.communicate(timeout=LONGEST_SECONDS) for agent in agents]
    quiet, told = sorted(output for output, _ in outputs)
    assert quiet == ""
    assert all(has_ended(agent.pid) for agent in agents)
    return [agent.returncode for agent in agents], told.splitlines(), [errors for _, errors in outputs]


def test_two_nodes(stack, tmp_path):
    statuses, lines, errors = on_two_nodes(stack, tmp_path, "both-send-first", "--timeout", "1")
    assert statuses == [0, 0], errors
    assert lines[0] == "both-send-first  world size 2  on processes"
    assert [line.split()[1] for line in lines if " in both_send_first, for " in line] == ["0", "1"]
    assert [line.count("`ddpsim run both-send-first --world-size 2`") for line in lines if line[:6] == "  try "] == [1]
    assert lines[-1] == "as expected: hung (expected fail, deadlock.cycle, ranks 0, 1)"
    assert {path.name.partition("_")[0] for path in tmp_path.iterdir()} == {"torchelastic"}  # torchrun's own


@pytest.mark.tier("nightly")
def test_two_nodes_end_alike(stack, tmp_path):
    statuses, lines, errors = on_two_nodes(stack, tmp_path, f"{PROGRAMS}:raises", "--engine", "ddp")
    assert statuses == [1, 1]  # torchrun's own, for whatever its processes end with
    assert all(re.search(r"exitcode +: 1 ", text) for text in errors), errors
    assert lines[-1] == "not as expected: rank_error, rank 1 (expected pass)"


@pytest.mark.tier("nightly")
def test_two_nodes_that_do_not_start(stack, tmp_path):
    program = tmp_path / "program.py"
    is_a_rank = "any(thread.name == 'ddpsim-watch' for thread in threading.enumerate())"
    program.write_text(f"import threading\nassert not {is_a_rank}, 'not here'\ndef main(rank): pass", encoding="utf-8")
    statuses, lines, errors = on_two_nodes(stack, tmp_path, f"{program}:main")
    assert statuses == [1, 1]
    assert all(re.search(r"exitcode +: 2 ", text) for text in errors), errors
    assert lines == []
    assert len(re.findall(r"ddpsim: rank [01] did not start \(.* AssertionError: not here", "".join(errors))) == 1


def test_by_hand_with_a_port_in_use(stack, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = start(stack, tmp_path, "-m", "ddpsim.scenarios.worker", "both-send-first", **by_hand("0", "2", port))
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
    line = errors.rstrip("\n")  # one, and nothing of torch's beside it
    assert line.startswith(f"ddpsim: rank 0 cannot open the store at 127.0.0.1:{port} (")
    assert re.search(r"expected a free port: set MASTER_ADDR and MASTER_PORT to one.*$", line)
    assert "\n" not in line
    assert process.returncode == 2
    assert has_ended(process.pid)


def test_without_a_launcher(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert worker.main(["both-send-first"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "ddpsim: environment lacks RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, expected torchrun to set them"
    )


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (by_hand("0", "2", "99999"), "MASTER_PORT is '99999', expected a whole number from 1 to 65535: correct it"),
        (by_hand("0", "2", "0"), "MASTER_PORT is '0', expected a whole number from 1 to 65535: correct it"),
        (by_hand("0", "2", "http"), "MASTER_PORT is 'http', expected a whole number from 1 to 65535: correct it"),
        (by_hand("5", "2", "29400"), "RANK is '5', expected a whole number from 0 to 1: correct it"),
        (by_hand("-1", "2", "29400"), "RANK is '-1', expected a whole number from 0 to 1: correct it"),
        (by_hand("0", "0", "29400"), "WORLD_SIZE is '0', expected a whole number from 1: correct it"),
    ],
)
def test_numbers_of_the_environment(monkeypatch, capsys, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert worker.main(["both-send-first"]) == 2
    assert capsys.readouterr().err == f"ddpsim: {line}, or start by torchrun\n"


def test_port_that_no_store_takes(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "99999")
    with pytest.raises(UsageError, match=r"^rank 0 cannot open the store at 127\.0\.0\.1:99999 \("):
        SupervisorStore.connect_to_store(0, 2, RankStarter(os.getppid(), None))


SCRIPT = """
from ddpsim.scenarios import run_scenario
run_scenario("both-send-first", transport="processes", world_size=2, timeout_seconds=1)
"""


def test_script_without_a_guard(stack, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = start(stack, tmp_path, str(script), PYTHONPATH=os.path.join(os.getcwd(), "src"))
    _, errors = command.communicate(timeout=LONGEST_SECONDS)
    assert command.returncode == 1
    assert errors.count("Traceback") == 1  # the script's own
    last = errors.splitlines()[-1]
    assert re.match(
        r"ddpsim\.simulator\.errors\.UsageError: the process of rank \d could not load own\.py, as each does", last
    )
    assert last.endswith('put what it does under `if __name__ == "__main__":`')
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


def test_script_that_is_no_file(stack, tmp_path):
    command = start(stack, tmp_path, "-", stdin=SCRIPT, PYTHONPATH=os.path.join(os.getcwd(), "src"))
    _, errors = command.communicate(timeout=LONGEST_SECONDS)
    assert errors.count("Traceback") == 1
    assert "UsageError: the script that starts the run is <stdin>, which other processes cannot load" in errors
    assert list(tmp_path.iterdir()) == []


def test_supervisor_that_dies(stack, tmp_path):
    words = ["run", f"{PROGRAMS}:kills_its_supervisor", "--world-size", "2", "--transport", "processes"]
    command = start(stack, tmp_path, "-m", "ddpsim", *words)
    _, errors = command.communicate(timeout=LONGEST_SECONDS)
    (line,) = errors.splitlines()
    assert line.startswith("ddpsim: the supervisor of rank 1 ended with signal SIGKILL, expected it to last: ")
    assert command.returncode == 2
    assert has_ended(command.pid)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_outlives_the_command(stack, tmp_path, number, status):
    words = ["run", f"{PROGRAMS}:says_so_and_hangs", "--world-size", "2", "--transport", "processes"]
    command = start(stack, tmp_path, "-m", "ddpsim", *words, "--timeout", "600")
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
        assert [path.name for path in tmp_path.iterdir()] == []
