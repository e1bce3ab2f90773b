"""torchrun called from Python: `elastic_launch` and `torch.distributed.run.main` start ranks."""

import pytest

from ddpsim import Code, Verdict, simulate_program
from ddpsim.scenarios.cli.commands import main

pytestmark = pytest.mark.tier("ci")  # it starts processes

FUNCTION = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def work(factor):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.ones(1) * rank * factor
    dist.all_reduce(total)
    print(*(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")), total.item())
    if "hang" in sys.argv and rank == 1:
        dist.barrier()
    if "raise" in sys.argv and rank == 1:
        raise ValueError("of a rank")
    dist.destroy_process_group()
    return torch.full((50_000,), rank + total.item())

if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=3, rdzv_backend="c10d", rdzv_endpoint="here:0", start_method="spawn"
    )
    try:
        print({rank: value.sum().item() for rank, value in elastic_launch(config, work)(2.0).items()})
    except Exception as error:
        print(type(error).__name__, error.get_first_failure()[0])
"""

COMMAND = """
import sys
from torch.distributed.run import main

if __name__ == "__main__":
    main(["--standalone", "--nproc-per-node", "2", *sys.argv[1:]])
    print("after the ranks")
"""

INNER = """
import sys
import helper, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(dist.get_rank(), total.item(), sys.argv, __name__, helper.LOADED)
if "hang" in sys.argv and dist.get_rank() == 0:
    dist.barrier()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def writes(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)

    return writes


@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.tier("nightly"))])
def test_a_function(write, capfd, method):
    write(train=FUNCTION.replace('"spawn"', f'"{method}"'))
    result = simulate_program(["train.py"], 3)
    assert result.verdict is Verdict.PASS, str(result)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines[:3]) == [f"{rank} {rank} 3 6.0" for rank in range(3)]
    assert lines[3:] == ["{0: 300000.0, 1: 350000.0, 2: 400000.0}"]


def test_a_function_that_hangs_or_raises_on_a_rank(write, capfd):
    write(train=FUNCTION)
    result = simulate_program(["train.py", "hang"], 3)
    assert (result.findings[0].code, result.findings[0].ranks) == (Code.DEADLOCK_MISSING_RANK, (1,))
    assert "train.py:13" in result.findings[0].body
    result = simulate_program(["train.py", "raise"], 3)
    assert result.findings[0].summary == "rank 1 raised ValueError: of a rank at train.py:15"
    assert capfd.readouterr().out.splitlines()[-1] == "ChildFailedError 1"


def test_a_command(write, capfd):
    write(train=COMMAND, inner=INNER, helper="LOADED = 1")
    assert main(["run", "train.py", "inner.py", "word"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines[:2]) == [f"{rank} 2.0 ['inner.py', 'word'] __main__ 1" for rank in range(2)]
    assert lines[2] == "after the ranks"
    result = simulate_program(["train.py", "inner.py", "hang"], 2)
    assert result.findings[0].ranks == (1,)
    assert "inner.py:9" in result.findings[0].body


def test_torchrun_itself(write, capfd):
    write(inner=INNER, helper="LOADED = 1")
    result = simulate_program(["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "inner"], 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert len(capfd.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nnodes", "2", "inner.py"], "elastic_launch is called for 2 to 2 nodes, expected one: "),
        (["--no-python", "bash"], "elastic_launch starts the command 'bash', expected a function, or Python with "),
        (["nothing.py"], "there is no file 'nothing.py', expected a program: correct the path"),
    ],
)
def test_what_cannot_be_simulated_has_a_line(write, capfd, words, line):
    write(train=COMMAND, inner=INNER)
    assert main(["run", "train.py", *words]) == 2
    (told,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("ddpsim: ")]
    assert told.startswith(f"ddpsim: {line}")
