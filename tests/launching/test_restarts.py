"""Programs whose ranks are started again, as by torchrun's `--max-restarts`. Each was compared with torchrun itself."""

import os
import re
from pathlib import Path

import pytest

from ddpsim import Code, UsageError, Verdict, explore, replay, simulate_program
from ddpsim.scenarios.cli.commands import main

pytestmark = pytest.mark.tier("ci")  # it starts processes

HEAD = """
import atexit, os, signal, sys, time
import torch, torch.distributed as dist
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
def tell(*what):
    print("TOLD", os.environ["RANK"], "attempt", attempt, *what, flush=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
KILLED = """
atexit.register(tell, "leaves")
dist.barrier()
if rank == 1 and attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    time.sleep(3)
finally:
    tell("slept", os.environ["TORCHELASTIC_MAX_RESTARTS"])
dist.destroy_process_group()
"""
HANDLED = """
def handle(number, frame):
    tell("gets TERM")
    sys.exit(0)
signal.signal(signal.SIGTERM, handle)
dist.barrier()
if rank == 0:
    sys.exit(3)
time.sleep(20)
tell("is not reached")
"""
LOSES_FIRST = """
dist.all_reduce(torch.ones(1))
if rank == 0 and attempt == "0":
    raise ValueError("once")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    def write_and_run(text, **options):
        Path("program.py").write_text(HEAD + text)
        return simulate_program(["program.py"], 2, **options)

    return write_and_run


def told(capsys):
    return sorted(re.findall(r"TOLD (.*)", capsys.readouterr().out))


def test_a_failed_rank_ends_all_and_all_start_again(run, capsys):
    result = run(KILLED, max_restarts=2)
    assert result.verdict is Verdict.PASS
    assert [each.findings[0].code for each in result.attempts] == [Code.RANK_ERROR]
    at_end = [f"{rank} attempt 1 {what}" for rank in range(2) for what in ("leaves", "slept 2")]
    assert told(capsys) == at_end  # SIGTERM runs neither `finally` nor exit handlers
    assert "attempt 1, after which the launcher started all ranks again" in str(result)
    assert "was killed by SIGKILL" in str(result)
    again = replay(["program.py"], 2, str(result.schedule))
    assert [each.trace.digest() for each in (*again.attempts, again)] == [
        each.trace.digest() for each in (*result.attempts, result)
    ]


def test_a_handler_of_sigterm_runs_before_the_sleep_is_over(run, capsys):
    result = run(HANDLED, max_restarts=1)
    assert (result.verdict, len(result.attempts)) == (Verdict.FAIL, 1)
    assert told(capsys) == ["1 attempt 0 gets TERM", "1 attempt 1 gets TERM"]


def test_without_restarts_there_is_one_attempt(run):
    result = run(LOSES_FIRST)
    assert (result.verdict, result.attempts) == (Verdict.FAIL, ())


def test_the_store_of_the_agent_has_the_addresses_of_the_attempt_before(run, monkeypatch):
    assert run(LOSES_FIRST, max_restarts=1).verdict is Verdict.PASS
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    result = run(LOSES_FIRST, max_restarts=1)  # as under `torchrun --standalone`, pytorch#135712
    assert "connectFullMesh failed" in result.findings[0].summary
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in result.findings[0].text


OWN_CLIENT = """
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store.add("own", 1)
dist.barrier()
tell("counts", store.add("own", 0), sorted(key for key in store.list_keys() if "own" in key))
dist.barrier()
if rank == 0 and attempt == "0":
    sys.exit(1)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_client_at_the_master_port_finds_the_store_of_rank_0(run, capsys):
    assert run(OWN_CLIENT, max_restarts=1).verdict is Verdict.PASS
    assert told(capsys) == [f"{rank} attempt {attempt} counts 2 ['own']" for rank in (0, 1) for attempt in (0, 1)]


def test_what_cannot_be_restarted_is_one_line(run):
    with pytest.raises(UsageError, match="max_restarts is 1, but slurm starts no rank again: leave one of them out"):
        run(LOSES_FIRST, max_restarts=1, launcher="slurm")
    with pytest.raises(UsageError, match="no exploration varies several attempts: leave it out"):
        explore(["program.py"], 2, max_restarts=1)


def test_the_restarts_of_a_launcher_in_python_are_named(run, capfd):
    Path("launches.py").write_text(
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "def work():\n    raise ValueError('always')\n"
        "if __name__ == '__main__':\n"
        "    elastic_launch(LaunchConfig(1, 1, 2, rdzv_backend='c10d', run_id='x', max_restarts=2), work)()\n"
    )
    assert main(["run", "--world-size", "2", "launches.py"]) == 1
    assert "torchrun would start these ranks again, 2 times at most" in capfd.readouterr().err
    assert os.environ.get("TORCHELASTIC_RESTART_COUNT") is None
