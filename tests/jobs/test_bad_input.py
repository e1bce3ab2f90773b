"""What cannot be run on real processes: one clear line, exit status 2, and nothing left."""

import re
import resource

import pytest
import torch.distributed as dist

from ddpsim import Budget, UsageError
from ddpsim.scenarios import Scenario, load, replay_scenario, run_scenario
from ddpsim.scenarios.cli import main
from tests.jobs.conftest import PROGRAMS, children

pytestmark = pytest.mark.tier("ci")  # it starts processes

GREETS = f"{PROGRAMS}:greets"


@pytest.fixture
def refused(capsys):
    """Run `ddpsim run NAME --transport processes` with the words of a line; returns its one line on stderr."""

    def refused(name, line=""):
        before = children()
        assert main(["run", name, "--transport", "processes", *line.split()]) == 2
        assert children() == before
        captured = capsys.readouterr()
        assert captured.out == ""
        (text,) = captured.err.splitlines()
        return text.removeprefix("ddpsim: ")

    return refused


LINES = {
    **{
        f"--timeout {each}": f"timeout is {float(each)}, expected more than 0 and at most 1200 seconds: say how long"
        for each in ("0", "-3", "nan", "inf", "1201")
    },
    **dict.fromkeys(["--policy random", "--seed 3"], r".*policy is '\w+' and seed \d, but real processes run freely"),
    "--world-size 65": "world size is 65, expected at most 64 as processes of this machine: take fewer ranks",
}


@pytest.mark.parametrize(("line", "expected"), LINES.items(), ids=LINES)
def test_options(refused, line, expected):
    assert re.match(expected, refused(GREETS if "world" in line else "send-send", line))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run send-send --timeout 3", "timeout is 3.0, but transport 'memory' finds a deadlock at once"),
        ("run send-send --transport pigeon", "transport is 'pigeon', expected 'memory', 'gloo', 'processes'"),
        ("zoo --transport processes --policy random", "but real processes run freely"),
    ],
)
def test_options_of_another_transport_or_command(capsys, line, expected):
    assert main(line.split()) == 2
    assert expected in capsys.readouterr().err


OWN = Scenario("own", "", lambda rank: rank)


@pytest.mark.parametrize(
    ("scenario", "options", "expected"),
    [
        ("send-send", {"timeout_seconds": "3"}, r"timeout is '3', expected more than 0"),
        (GREETS, {"world_size": "4"}, r"world size is '4', expected a whole number from 1"),
        (
            "send-send",
            {"budget": Budget()},
            r"budget is Budget\(.*\), but real processes are no simulation: leave it out",
        ),
        (OWN, {}, r"own cannot be given to other processes .*: move it there, or name it as FI"),
    ],
)
def test_arguments(scenario, options, expected):
    with pytest.raises(UsageError, match=f"^{expected}"):
        run_scenario(load(scenario) if scenario == GREETS else scenario, transport="processes", **options)


def test_replay():
    with pytest.raises(
        UsageError, match=r"^transport is 'processes', but real processes run freely and cannot be repl"
    ):
        replay_scenario("send-send", "s1:0:00000000", transport="processes")


def test_faults(refused):
    assert re.match(r"rank-crash has faults \(Crash\(.*use transport 'memory' or 'gloo'$", refused("rank-crash"))


def test_torch_without_gloo(refused, monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert refused("send-send").startswith("transport is 'processes', but this torch has no gloo, expected one built")


def test_limit_on_processes_and_no_room_for_a_rank(refused, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    assert refused(GREETS, "--world-size 5").startswith("world size is 5, expected at most 4 as processes of this")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (15, 15))
    expected = "this user may start fewer than 16 processes, expected 16 or more for each rank: raise"
    assert refused(GREETS, "--world-size 1").startswith(expected)


def test_rank_that_dies_while_starting(server, refused, monkeypatch):
    monkeypatch.setenv("DIES_WHILE_STARTING", "1")
    text = refused(GREETS, "--world-size 2")
    assert text.startswith("rank 1 did not start (signal SIGKILL), expected its process to load the program")


def test_program_that_cannot_be_loaded_there(server, refused, tmp_path):
    program = tmp_path / "program.py"
    lines = ["import os", "assert 'TORCHELASTIC_RUN_ID' not in os.environ, 'not here'", "def main(rank): pass"]
    program.write_text("\n".join(lines), encoding="utf-8")
    text = refused(f"{program}:main", "--world-size 2")
    assert re.match(r"rank \d did not start \(UsageError: .*program\.py:2 raised AssertionError: not here", text)
