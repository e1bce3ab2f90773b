"""A program that asks for a GPU where there is none gets virtual ones, and one line says so."""

import re
import textwrap

import pytest
import torch

from ddpsim import Verdict, explore, simulate_program
from ddpsim.scenarios.cli.commands import main
from ddpsim.simulator.launching.script import Script
from tests.tiers import sweep

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

ASKS = {
    "backend 'nccl'": 'dist.init_process_group("nccl")',
    "backend 'nccl' for cuda only": 'dist.init_process_group(backend="cpu:gloo,cuda:nccl")',
    "torch.cuda.set_device": 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    "device 'cuda' by .cuda()": "assert torch.ones(1).cuda().is_cuda",
    "device 'cuda' of a module by .cuda()": "assert next(torch.nn.Linear(1, 1).cuda().parameters()).is_cuda",
    "device 'cuda'": 'assert torch.ones(1).to("cuda:0").is_cuda',
    "device 'cuda' of a module": 'assert next(torch.nn.Linear(1, 1).to(torch.device("cuda")).parameters()).is_cuda',
    "device 'cuda' by default": 'torch.set_default_device("cuda"); assert torch.ones(1).is_cuda',
    "device 'cuda' first of all": 'assert torch.ones(1, device="cuda").is_cuda',
    "torch.cuda.current_device": "assert torch.cuda.current_device() == 0",
}
BY_DEFAULT = ("backend 'nccl'", "torch.cuda.set_device", "device 'cuda' by .cuda()", "device 'cuda' first of all")
"""One of each kind: a backend, a function of torch.cuda, a method, a device."""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*lines):
        head = "import os\nimport torch\nimport torch.distributed as dist\n"
        (tmp_path / "own.py").write_text(head + textwrap.dedent("\n".join(lines)) + "\n")
        return ["own.py"]

    return write


def line(asked_for):
    return (
        f"ddpsim: the program asks for {asked_for} and this machine has no GPU: it gets virtual ones, which compute on "
        "the CPU (--gpus N sets their number)\n"
    )


@pytest.mark.parametrize("asked_for", sweep(ASKS, lambda each: each in BY_DEFAULT))
def test_a_program_that_asks(program, capfd, asked_for):
    command = program(ASKS[asked_for], "assert torch.cuda.is_available() and torch.cuda.device_count() == 3")
    assert simulate_program(command, 3).verdict is Verdict.PASS
    assert capfd.readouterr() == ("", line(re.split(" of | for | by | first ", asked_for)[0]))


def test_a_name_imported_before_there_were_gpus(program, capfd):
    # As in torch's own tutorial: what was put there for the first request stays when the second comes by such a name.
    command = program(
        "from torch.distributed import init_process_group",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        'init_process_group("nccl")',
        'print(torch.nn.Linear(1, 1).to(int(os.environ["LOCAL_RANK"])).weight.device, torch.cuda.current_device())',
    )
    assert simulate_program(command, 2).verdict is Verdict.PASS
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "cuda:0 0", "cuda:1 1"]


def test_a_program_that_only_looks(program, capfd):
    command = program(
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        "assert torch.cuda.device_count() == 0",
        'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
        "print(torch.ones(1).to(device).device, dist.get_backend())",
    )
    assert simulate_program(command, 2).verdict is Verdict.PASS
    assert capfd.readouterr() == ("cpu gloo\n" * 2, "")


def test_nothing_is_said_of_those_that_are_given(program, capfd):
    command = program('dist.init_process_group("nccl")', "print(torch.cuda.device_count())")
    assert simulate_program(command, 2, gpus=8).verdict is Verdict.PASS
    assert capfd.readouterr() == ("8\n" * 2, "")


HANG = (
    'local_rank = int(os.environ["LOCAL_RANK"])',
    "torch.cuda.set_device(local_rank)",
    'dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
    'loss = torch.ones(1, device="cuda")',
    "if local_rank == 0:",
    "    dist.all_reduce(loss)",
)


@pytest.mark.tier("ci")
def test_a_hang_on_the_console(program, capfd):
    program(*HANG)
    assert main(["run", "--gpus", "4", "--world-size", "4", "own.py"]) == 1
    out = capfd.readouterr().out
    assert "DEADLOCK  deadlock.missing_rank" in out
    (waiting,) = [each for each in out.splitlines() if each.startswith("  rank 0  waits in all_reduce")]
    assert "SUM float32[1]" in waiting
    assert "own.py:9" in waiting
    (replay,) = [each for each in out.splitlines() if each.startswith("  replay  ")]
    words = replay.split()[2:]
    assert words[2:] == ["--gpus", "4", "own.py"]
    assert main(words) == 1
    assert main(["explore", "--gpus", "4", "--world-size", "2", "own.py"]) == 1
    assert "deadlock.missing_rank" in capfd.readouterr().out


@pytest.mark.tier("ci")
def test_exploring(program):
    command = program(*HANG[:4], "dist.all_reduce(loss)", "assert loss.is_cuda and loss.item() == 2")
    exploration = explore(Script(tuple(command)), 2, gpus=2)
    assert (exploration.verdict, exploration.complete) == (Verdict.PASS, True)


def test_real_processes_have_none(capfd):
    assert main(["run", "--gpus", "2", "--transport", "processes", "uneven-inputs"]) == 2
    line = (
        "ddpsim: gpus is 2, but real processes are no simulation and have no virtual GPUs: leave it out, or use "
        "transport 'memory'\n"
    )
    assert capfd.readouterr() == ("", line)
