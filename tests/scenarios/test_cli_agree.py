"""`ddpsim agree`: programs on simulator and gloo, what is said where they disagree, and one line for bad input."""

import json
import re
import threading

import pytest
import torch.distributed as dist

from ddpsim import UsageError
from ddpsim.scenarios.agreement import both
from ddpsim.scenarios.agreement.breaking import labelled
from ddpsim.scenarios.agreement.comparison import simulated
from ddpsim.scenarios.agreement.pool import server_link
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.agree import _world_sizes
from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.ranks.interpreter import run_steps


@pytest.fixture
def agree(capsys, tmp_path, monkeypatch):
    """Run `ddpsim agree` with the words of a line, in an empty folder; returns status, lines of stdout, and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        status = main(["agree", *line.split()])
        captured = capsys.readouterr()
        return status, re.sub(r"\d+\.\d s$", "TIME s", captured.out.rstrip("\n")).splitlines(), captured.err

    return run


def loses_a_value(rank, program):
    """A rank as it would be if simulator and gloo moved other bytes."""
    outputs = run_steps(rank, program)
    for name, tensors in outputs.items():
        outputs[name] = [tensor._replace(content=bytes(len(tensor.content))) for tensor in tensors]
    return outputs


def test_sixty_programs(agree, tmp_path):
    status, out, err = agree("--programs 60")
    assert (status, err) == (Status.AS_EXPECTED, "")
    assert out[0] == "60 programs, seeds 0 to 59, world size 2..4"
    assert out[2].split() == ["broken", "simulator", "programs", "completes", "hangs", "raises", "dies", "disagree"]
    (total,) = (line.split()[1:] for line in out if line.startswith("all "))
    rows = [line[23:].split() for line in out[3 : out.index("", 3)] if not line.startswith("all ")]
    columns = [sum(int(cell) for cell in column if cell != "-") for column in zip(*rows, strict=True)]
    assert [str(number or "-") for number in columns] == total
    assert total[0] == "60"
    assert total[-1] == "-"
    assert out[-1] == "60 programs, no disagreements, TIME s"
    assert list(tmp_path.iterdir()) == []


def test_a_disagreement_is_told_and_saved_and_replayed(agree, monkeypatch, tmp_path):
    seed = next(seed for seed in range(100) if simulated(labelled(seed, (3, 3)).program).verdict.value == "pass")
    with monkeypatch.context() as patched:
        patched.setattr(both, "run_steps", loses_a_value)
        status, out, _ = agree(f"--programs 1 --seed {seed} --world-size 3 --save {tmp_path}")
    assert status == Status.OTHERWISE
    path = tmp_path / f"disagreement-{seed}.json"
    assert out[0] == f"1 program, seed {seed}, world size 3"
    assert re.match(rf"seed {seed} \(\w+\): 'c\d' on rank 0: ", out[2])
    assert out[3:6] == [
        f"  saved   {path}",
        f"  replay  ddpsim agree --replay {path}",
        f"  draw    ddpsim agree --programs 1 --seed {seed} --world-size 3",
    ]
    assert json.loads(path.read_text())["world_size"] == "3"
    assert out[-1] == "1 program, 1 disagreement, TIME s"
    status, out, _ = agree(f"--replay {path}")
    assert status == Status.AS_EXPECTED
    assert out[0] == str(path)
    assert out[-1] == "1 program, no disagreements, TIME s"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--programs 0", "programs is 0, expected 1 to 1000000: say how many to draw"),
        (
            "--programs 9999999999999999999",
            "programs is 9999999999999999999, expected 1 to 1000000: say how many to draw",
        ),
        ("--seed -1", "seed is -1, expected 0 to 1000000000000: take the seed of a program"),
        ("--seed 1000000000001", "seed is 1000000000001, expected 0 to 1000000000000: take the seed of a program"),
        ("--timeout 0", "timeout is 0, expected more than 0 and at most 3600 seconds: say how long nothing may move"),
        ("--timeout -2", "timeout is -2, expected more than 0 and at most 3600 seconds: say how long nothing may move"),
        (
            "--timeout nan",
            "timeout is nan, expected more than 0 and at most 3600 seconds: say how long nothing may move",
        ),
        (
            "--timeout inf",
            "timeout is inf, expected more than 0 and at most 3600 seconds: say how long nothing may move",
        ),
        (
            "--timeout 1e10",
            "timeout is 1e+10, expected more than 0 and at most 3600 seconds: say how long nothing may move",
        ),
        (
            "--timeout 1e300 --programs 30",
            "timeout is 1e+300, expected more than 0 and at most 3600 seconds: say how long nothing may move",
        ),
        (
            "--replay file --seed 0",
            "found --seed beside --replay, expected no more than --timeout: the file says which program is run",
        ),
        (
            "--replay file --world-size 2..4 --programs 3 --save .",
            "found --programs, --world-size, --save beside --replay, expected no more than --timeout: "
            "the file says which program is run",
        ),
        ("--save nowhere", "save is 'nowhere', expected a folder: make it, or name another"),
        (
            "--replay nowhere",
            "nowhere cannot be read (No such file or directory): name a file that `ddpsim agree` saved",
        ),
    ],
)
def test_bad_input(agree, line, text):
    assert agree(line) == (Status.USAGE_ERROR, [], f"ddpsim: {text}\n")


@pytest.mark.parametrize(
    "text", ["1", "0", "65", "2..65", "4..2", "1..2", "2...4", "-3", "x", "", "2..4 ", "2.." + "9" * 5000]
)
def test_world_sizes_that_are_none(text):
    with pytest.raises(UsageError, match=r"^world size is '.*', expected a number from 2 to 64 or a range as 2\.\.4: "):
        _world_sizes(text)


@pytest.mark.parametrize(("text", "sizes"), [("2", (2, 2)), ("3..3", (3, 3)), ("2..64", (2, 64))])
def test_world_sizes(text, sizes):
    assert _world_sizes(text) == sizes


def test_a_replay_saves_nothing(agree, monkeypatch, tmp_path):
    seed = next(seed for seed in range(100) if simulated(labelled(seed).program).verdict.value == "pass")
    monkeypatch.setattr(both, "run_steps", loses_a_value)
    agree(f"--programs 1 --seed {seed}")
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    path.rename(tmp_path / "mine.json")
    status, out, _ = agree("--replay mine.json")
    assert status == Status.OTHERWISE
    assert re.match(rf"seed {seed} \(\w+\): 'c\d' on rank 0: ", out[2])
    assert out[3] == ""  # and nothing of a file
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("mine.json", before)]


def test_a_damaged_file(agree, tmp_path):
    (tmp_path / "half.json").write_text('{"format": "ddpsim disagreement", "version": 1, ')
    status, out, err = agree("--replay half.json")
    assert (status, out) == (Status.USAGE_ERROR, [])
    assert re.fullmatch(r"ddpsim: half\.json is no JSON \(.*\): name a file that `ddpsim agree` saved\n", err)


def test_no_gloo(agree, monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    status, out, err = agree("--programs 1")
    assert (status, len(out)) == (Status.UNKNOWN, 1)
    assert err == "ddpsim: found no gloo in this torch, expected it: install a build of torch that has gloo\n"


def test_ranks_cannot_be_started(agree, monkeypatch):
    monkeypatch.setattr(server_link, "_SERVE", "raise SystemExit('out of memory')")
    status, _, err = agree("--programs 1")
    assert status == Status.UNKNOWN
    assert re.fullmatch(
        r"ddpsim: the process that starts the ranks ended while starting, with exit status 1 \(out of memory\), .*\n",
        err,
    )


def test_no_more_threads(agree, monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "ddpsim rank 3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    status, _, err = agree("--programs 1 --world-size 4")
    assert status == Status.USAGE_ERROR
    assert err.startswith("ddpsim: the system starts no thread for rank 3 (can't start new thread), expected one for ")
