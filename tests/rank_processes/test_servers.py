"""Ranks of a program start unlike, as under torchrun, and yet the same in each run; and alike where that is wanted."""

import textwrap

import pytest

from ddpsim import Budget, Code, ReplayError, Schedule, Verdict, explore, replay, simulate_program
from ddpsim.simulator.rank_processes.program import Program
from tests.rank_processes.left_behind import what_there_is, with_servers

SETS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sizes = {"image": 3, "text": 5, "audio": 2, "video": 7}
for name in %s:
    dist.all_reduce(torch.ones(sizes[name]))  # line 6
"""

DROPS = """
import random
import torch, torch.distributed as dist
dist.init_process_group("gloo")
%s
for layer in range(8):
    if %s < 0.5:
        dist.all_reduce(torch.ones(4))  # line 8
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_servers()
    before = what_there_is()

    def written(source):
        (tmp_path / "train.py").write_text(textwrap.dedent(source).lstrip("\n"))
        return ["train.py"]

    yield written
    assert what_there_is() == before


def test_a_set_in_its_own_order_is_found_and_replayed(program):
    command = program(SETS % "set(sizes)")
    found = simulate_program(command, 4)
    assert found.findings[0].code is Code.MISMATCH_SHAPE, str(found)
    assert found.findings[0].sites[0].line == 5
    assert "train.py" in found.findings[0].sites[0].file
    assert str(found.schedule).split(":")[2] == "u28.80"
    again = replay(Program(tuple(command)), 4, str(found.schedule))
    assert again.trace.digest() == found.trace.digest()
    assert str(again.schedule) == str(found.schedule)
    assert simulate_program(command, 4, alike=True).verdict is Verdict.PASS
    assert simulate_program(program(SETS % "sorted(sizes)"), 4).findings == ()


@pytest.mark.tier("ci")
@pytest.mark.parametrize("draw", ["random.random()", "torch.rand(1).item()"])
def test_layers_that_are_dropped_unseeded_are_found(program, draw):
    command = program(DROPS % ("", draw))
    found = simulate_program(command, 2)
    assert found.verdict is Verdict.FAIL
    assert "train.py:7" in found.findings[0].body
    assert replay(Program(tuple(command)), 2, str(found.schedule)).trace.digest() == found.trace.digest()
    assert simulate_program(command, 2, alike=True).findings == ()
    assert simulate_program(program(DROPS % ("random.seed(0); torch.manual_seed(0)", draw)), 2).findings == ()


def test_a_token_says_how_ranks_start(program):
    command = program(SETS % "set(sizes)")
    alike = simulate_program(command, 2, alike=True)
    assert ":a28:" in str(alike.schedule)
    assert replay(Program(tuple(command)), 2, str(alike.schedule)).trace.digest() == alike.trace.digest()
    old = str(Schedule((), alike.program))
    assert old.count(":") == 2
    assert replay(Program(tuple(command)), 2, old, strict=False).verdict is Verdict.FAIL
    with pytest.raises(ReplayError, match="does not match its own checksum"):
        replay(Program(tuple(command)), 2, str(alike.schedule).replace(":a28:", ":u28:"))


@pytest.mark.tier("ci")
def test_an_exploration_keeps_the_seeds(program, capfd):
    command = program(SETS % "sorted(sizes)" + "import random\nprint(random.random(), hash('a'))\n")
    digests = set()
    for _ in range(2):
        explored = explore(Program(tuple(command)), 2, policy="random", keep_going=True, budget=Budget(executions=2))
        assert explored.executions == 2
        assert str(explored.first_pass.schedule.start) == "u28.80"
        digests.add((explored.first_pass.trace.digest(), capfd.readouterr().out))
    assert len(digests) == 1
