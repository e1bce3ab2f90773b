"""Programs in files of scenarios: with their arguments and how they run, found from wherever the file lies."""

import os
from pathlib import Path

import pytest

from ddpsim import Code, Verdict, simulate_program
from ddpsim.scenarios.cli.commands import main
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.program_line import (
    python_file_in_name,
    quote_for_command_line,
    replace_path_in_name,
    split_program_line,
)
from ddpsim.scenarios.files.saving import scenario_as_toml, write_text
from ddpsim.scenarios.fuzzing.named_scenario import name_from_corpus
from ddpsim.scenarios.fuzzing.shrinking.saved import default_output_path, shrunk_scenario_text
from ddpsim.scenarios.running.run_as import with_run_options
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.simulator.choices import RankSeeds

SHARES = """
import sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
print("noise")
if rank:
    dist.send(torch.tensor(rank), dst=0)
else:
    order = [dist.recv(torch.tensor(0)) for _ in range(1, dist.get_world_size())]
    assert order == sorted(order) or sys.argv[1:] == ["--any", "order"], f"they came in the order {order}"
"""
"""The third rank and the second one race: with three ranks or more, some schedules fail."""

LOOKS = [
    ("train.py --name 'a b'", "train.py", ["train.py", "--name", "a b"], "train.py --name 'a b'"),
    ("own.py:f", "own.py", [], "own.py:f"),
    ("-m package.train --epochs 2", "", ["-m", "package.train", "--epochs", "2"], "-m package.train --epochs 2"),
    ("own file.py:f", "own file.py", [], "'own file.py:f'"),
    ("send-send", "", [], "send-send"),
    ("it's.toml", "", [], "'it'\"'\"'s.toml'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shares.py").write_text(SHARES)
    return tmp_path


@pytest.mark.parametrize(("name", "path", "words", "typed"), LOOKS)
def test_what_a_name_says(name, path, words, typed):
    assert (python_file_in_name(name), split_program_line(name), quote_for_command_line(name)) == (path, words, typed)
    assert replace_path_in_name(name, lambda file: f"there/{file}") == (
        name.replace(path, f"there/{path}") if path else name
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sub/train.py --epochs 2", "sub/train-shrunk.toml"),
        ("sub/train.py:main", "sub/train-main-shrunk.toml"),
        ("-m package.train --epochs 2", "package.train-shrunk.toml"),
        ("sub/found.toml", "sub/found-shrunk.toml"),
    ],
)
def test_where_what_was_shrunk_is_saved(name, path):
    assert default_output_path(name) == Path(path)


def save_shrunk(scenario, name, path):
    write_text(path, shrunk_scenario_text(scenario, name, path))


def test_a_saved_program_is_the_same_program_from_another_folder(folder):
    own = with_run_options(
        load("shares.py --any 'other order'").with_world_size(5),
        {"isolation": "process", "gpus": 3, "check": "none", "alike": True, "preload": ["json"]},
    )
    save_shrunk(own, "shares.py --any 'other order'", folder / "sub" / "shrunk.toml")
    text = (folder / "sub" / "shrunk.toml").read_text()
    assert "scenario = \"../shares.py --any 'other order'\"" in text
    found = load("sub/shrunk.toml")
    assert found.program.command == ("sub/../shares.py", "--any", "other order")
    assert not found.program.counts_ranks
    assert (found.world_size, found.isolation, found.gpus, found.check) == (5, "process", 3, None)
    assert (found.alike, found.preload) == (True, ("json",))
    save_shrunk(found, "sub/shrunk.toml", folder / "again.toml")
    assert "scenario = \"shares.py --any 'other order'\"" in (folder / "again.toml").read_text()


def test_a_file_says_nothing_that_need_not_be_said(folder):
    assert [line.partition(" = ")[0] for line in scenario_as_toml(load("shares.py"), summary="s").splitlines()] == [
        "ddpsim",
        "summary",
        "world_size",
        "scenario",
    ]
    assert name_from_corpus("shares.py --x", folder / "a" / "b") == "../../shares.py --x"
    assert name_from_corpus("-m json.tool --x", folder / "a" / "b") == "-m json.tool --x"


@pytest.mark.tier("ci")
def test_a_saved_program_keeps_the_hash_seed_it_was_found_under(folder, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    save_shrunk(load("shares.py"), "shares.py", folder / "found.toml")
    assert "hash_seed = 5\n" in (folder / "found.toml").read_text()
    monkeypatch.delenv("PYTHONHASHSEED")
    assert run_scenario("found.toml", world_size=2).schedule.start == RankSeeds(False, (5,))
    assert "PYTHONHASHSEED" not in os.environ
    save_shrunk(load("shares.py"), "shares.py", folder / "other.toml")
    assert "hash_seed" not in (folder / "other.toml").read_text()


@pytest.mark.tier("nightly")
def test_what_fuzz_finds_in_a_program_is_kept_and_replayed(folder, console):
    words = ["fuzz", "--executions", "4", "--world-size", "3", "shares.py"]
    status, out, _ = console(*words)
    assert status == 1
    assert "program on torch" in out
    assert "noise" not in out
    (kept,) = (folder / ".ddpsim" / "corpus").glob("*.toml")
    (line,) = [line for line in out.splitlines() if line.startswith("  replay  ")]
    assert line.split()[2:4] == ["replay", str(kept.relative_to(folder))]
    assert console(*line.split()[2:])[0] == 1
    status, out, _ = console("replay", str(kept))
    assert status == 1  # as recorded, and not as expected
    assert "they came in the order [2, 1]" in out
    assert "not as recorded" not in out
    status, out, _ = console(*words, "--any", "order")
    assert status == 1
    assert "found: 1 failure reproduced from the corpus" in out
    kept.unlink()
    status, out, _ = console(*words, "--any", "order")
    assert (status, out.splitlines()[-1]) == (0, "nothing found")


@pytest.mark.tier("nightly")
def test_a_program_is_shrunk_to_the_fewest_ranks_and_switches(folder, console):
    status, out, _ = console("shrink", "--world-size", "4", "--policy", "random", "--seed", "2", "shares.py")
    assert status == 0, out
    assert "4 ranks, " in out
    assert out.count("noise") == 3  # of the run that is told
    assert "  ->  3 ranks, 0 switches" in out
    assert "minimal: no single step makes it simpler" in out
    assert main(["run", "shares-shrunk.toml"]) == 1


@pytest.mark.tier("nightly")
def test_a_program_that_asks_for_its_world_is_no_smaller_case(folder, console):
    (folder / "asks.py").write_text(
        "import os, torch.distributed as dist\n"
        'dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)\n'
        "if dist.get_rank() == 1:\n    dist.barrier()\n"
    )
    status, out, _ = console("shrink", "--world-size", "3", "asks.py")
    assert status == 0
    assert "3 ranks, 0 switches  ->  3 ranks, 0 switches" in out
    assert console("run", "--world-size", "4", "asks.py")[::2] == (
        2,
        "ddpsim: the program asks for world size 3, expected 4, the number of ranks that run: take world size 3 "
        "(--world-size 3), or let the program read WORLD_SIZE\n",
    )
    assert console("fuzz", "--executions", "3", "asks.py")[0] == 2


@pytest.mark.tier("nightly")
def test_worlds_that_a_program_refuses_are_no_failures(folder, console):
    (folder / "spawns.py").write_text(
        "import torch.distributed as dist, torch.multiprocessing as mp\n"
        "def main(rank):\n"
        '    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=2)\n'
        "    dist.barrier()\n"
        'if __name__ == "__main__":\n    mp.spawn(main, nprocs=2)\n'
    )
    status, out, _ = console("fuzz", "--executions", "8", "spawns.py")
    assert (status, out.splitlines()[-1]) == (0, "nothing found")
    assert "refused" in out


@pytest.mark.tier("ci")
def test_replicas_of_programs_are_compared_unless_told(folder, console):
    (folder / "drifts.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        'dist.init_process_group("gloo")\n'
        "model = torch.nn.Linear(1, 1)\n"
        "wrapped = DDP(model)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + dist.get_rank())\n"
        "wrapped(torch.ones(1)).sum().backward()\n"
        "optimizer.step()\n"
    )
    for said, code in (((), 1), (("--check", "replicas"), 1), (("--check", "none"), 0)):
        assert console("run", "--world-size", "2", *said, "drifts.py")[0] == code
    with_check = simulate_program(["drifts.py"], 2, check="replicas")
    assert [each.code for each in with_check.findings] == [Code.DIVERGENCE_PARAMETERS]
    assert simulate_program(["drifts.py"], 2).verdict is Verdict.PASS


def test_what_programs_print_is_kept_from_who_runs_them_often(folder, console):
    status, out, err = console("explore", "--world-size", "2", "shares.py")
    assert (status, err) == (0, "")
    assert out.startswith("PASS  shares.py on 2 ranks\n")
