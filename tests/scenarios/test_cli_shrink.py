"""`ddpsim shrink`: what it prints, what it saves, and its exit status."""

from functools import partial

import pytest

from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.files.value_scenarios import training_of_scenario
from ddpsim.scenarios.training.training import Training
from tests.kit.own_programs import RACY

UNEVEN = """
summary = "one rank has a batch less"
world_size = 6
network = "mlp"
iterations = [3, 3, 3, 2, 3, 3]
join = false
"""


@pytest.fixture
def shrink(ddpsim):
    """Run the command in a folder of its own; return its exit status, stdout and stderr."""
    return partial(ddpsim, "shrink")


def test_a_training_becomes_small_and_is_saved_beside_its_file(shrink, tmp_path):
    (tmp_path / "own.toml").write_text(UNEVEN)
    status, out, err = shrink("own.toml")
    assert (status, err) == (ExitStatus.AS_EXPECTED, "")
    lines = out.splitlines()
    assert lines[0].startswith("6 ranks, 17 iterations, 0 switches  ->  2 ranks, 1 iteration, 0 switches   ")
    assert lines[1:4] == [
        "minimal: no single step makes it simpler",
        "",
        next(line for line in lines if line.startswith("DEADLOCK  deadlock.missing_rank")),
    ]
    assert lines[-2:] == ["saved in own-shrunk.toml; to run it:", "  ddpsim run own-shrunk.toml"]
    saved = load("own-shrunk.toml")
    assert training_of_scenario(saved) == Training(iterations=(0, 1), rows=1)
    assert saved.summary == "shrunk from own.toml: one rank has a batch less"
    replay = next(line for line in lines if line.startswith("  replay  "))
    assert main(replay.split()[2:]) == ExitStatus.OTHERWISE  # it is expected to pass, as the file it comes from


def test_a_scenario_of_the_zoo_is_saved_here(shrink, capsys):
    status, out, _ = shrink("uneven-inputs-without-join", "--world-size", "9", "--engine", "ddp")
    assert status == ExitStatus.AS_EXPECTED
    assert out.startswith("9 ranks, 0 switches  ->  2 ranks, 0 switches   1 execution, ")
    assert "  ddpsim run uneven-inputs-without-join-shrunk.toml\n" in out
    assert main(["run", "uneven-inputs-without-join-shrunk.toml"]) == ExitStatus.AS_EXPECTED
    assert "engine ddp" in capsys.readouterr().out


def test_the_failing_schedule_is_found_by_a_policy_or_a_token(shrink, tmp_path, capsys):
    (tmp_path / "own.py").write_text(RACY)
    assert main(["run", "own.py:racy", "--policy", "random", "--seed", "3"]) == ExitStatus.OTHERWISE
    token = capsys.readouterr().out.partition("replay own.py:racy ")[2].split()[0]
    _, by_policy, _ = shrink("own.py:racy", "--policy", "random", "--seed", "3", "-o", "of/policy.toml")
    _, by_token, _ = shrink("own.py:racy", token, "-o", "of/token.toml")
    assert by_policy.partition(" executions")[0] == by_token.partition(" executions")[0]
    assert "->  3 ranks, 1 switch   " in by_policy
    assert (tmp_path / "of" / "policy.toml").read_text() == (tmp_path / "of" / "token.toml").read_text()
    found = load("of/policy.toml")
    assert (found.world_size, found.choices) == (3, (2,))
    assert main(["run", "of/policy.toml"]) == ExitStatus.OTHERWISE
    assert "rank 0 raised AssertionError" in capsys.readouterr().out


def test_a_file_that_names_another_scenario(shrink, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "own.py").write_text(RACY)
    (tmp_path / "a" / "other.toml").write_text(
        'summary = "on six"\nscenario = "own.py:racy"\nworld_size = 6\nschedule = "0.4.1.3"\n'
    )
    status, out, _ = shrink("a/other.toml", "-o", "b/least.toml")
    assert status == ExitStatus.AS_EXPECTED
    assert out.startswith("6 ranks, ")
    assert "->  3 ranks, 1 switch   " in out
    assert 'scenario = "../a/own.py:racy"\n' in (tmp_path / "b" / "least.toml").read_text()
    capsys.readouterr()
    assert main(["run", "b/least.toml"]) == ExitStatus.OTHERWISE
    assert "rank 0 raised AssertionError" in capsys.readouterr().out


def test_time_that_runs_out_is_said(shrink, tmp_path):
    (tmp_path / "own.toml").write_text(UNEVEN)
    status, out, _ = shrink("own.toml", "--seconds", "1e-9")
    assert status == ExitStatus.AS_EXPECTED
    assert out.splitlines()[1] == "the time ran out: a simpler scenario may exist; increase --seconds"
    assert load("own-shrunk.toml").world_size == 6


def test_nothing_is_overwritten(shrink, tmp_path):
    (tmp_path / "send-send-shrunk.toml").write_text("mine")
    status, out, err = shrink("send-send")
    assert (status, out) == (ExitStatus.USAGE_ERROR, "")
    assert err == (
        "ddpsim: send-send-shrunk.toml exists, expected a new file, so that nothing is lost: name another with -o, or "
        "remove it\n"
    )
    assert (tmp_path / "send-send-shrunk.toml").read_text() == "mine"


@pytest.mark.parametrize(
    "module",
    ["ddpsim.scenarios.fuzzing.shrinking.shrinker", "ddpsim.scenarios.running.runner"],
    ids=["while shrinking", "the saved file"],
)
def test_what_does_not_fail_each_time_is_said_and_not_saved(shrink, tmp_path, monkeypatch, module):
    # The second run that shrinking makes for itself, and the one of the file, which is the only one by its path.
    runs, is_file = [], module.endswith("runner")

    def by_chance(scenario, *each, **options):
        runs.append(scenario)
        passes = is_file or len(runs) == 2
        return run_scenario("join-baseline" if passes else scenario, *each, **options)

    monkeypatch.setattr(f"{module}.run_scenario", by_chance)
    status, out, _ = shrink("send-send", "-o", "least.toml")
    assert status == ExitStatus.OTHERWISE
    assert out == (
        "send-send failed, but not again under the same schedule, so nothing is saved: the program is not "
        "deterministic (time, random numbers); to find the cause: ddpsim explore --check-determinism send-send\n"
    )
    assert not list(tmp_path.iterdir())
