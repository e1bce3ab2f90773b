"""`ddpsim replay`: steps, a recording that is not followed, and what it exits with."""

import os
import re
import sys
from functools import partial

import pytest

from ddpsim import Code, Schedule, Verdict, simulate
from ddpsim import replay as repeat
from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.replay import HELP, show_steps, show_steps_interactively
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.files.recorded_outcome import RecordedOutcome, recorded_outcome_of
from ddpsim.simulator.choices import choices_text, program_identity
from ddpsim.simulator.transcript import TranscriptLine

RACE = "results-taken-in-order-of-arrival"


@pytest.fixture
def replay(console):
    """Run the command; return its exit status, stdout and stderr."""
    return partial(console, "replay")


def token(name, *choices, world_size=4):
    return str(Schedule(choices, program_identity(name, world_size)))


@pytest.fixture
def collects(tmp_path):
    """The name of a scenario in which rank 0 takes a message of each of the first so many other ranks."""

    def write(senders):
        path = tmp_path / "collects.py"
        path.write_text(
            "import torch, torch.distributed as dist\n"
            "def main(rank):\n"
            f"    if rank > {senders}: return\n"
            "    if rank: return dist.send(torch.tensor(rank), dst=0)\n"
            f"    for _ in range({senders}): dist.recv(torch.tensor(0))\n"
        )
        return f"{path}:main"

    return write


# --- steps ------------------------------------------------------------------------------------------------------------


def test_step_shows_every_event_and_choice_and_then_the_result(replay):
    recorded = run_scenario(RACE, policy="random", seed=3)
    status, out, err = replay(RACE, str(recorded.schedule), "--step")
    head, *lines = out.partition("\n\n")[0].splitlines()
    assert (status, err) == (ExitStatus.AS_EXPECTED, "")
    assert head.split() == ["step", "time", "choice", "rank", "what"]
    kinds = [match[1] for line in lines if (match := re.search(r"  \d  (\w+)(?:  |$)", line)) and match[1] != "goes"]
    assert kinds == [event.kind.value for event in recorded.trace]
    assert sum(bool(re.search(r" \d [<>] \d of ", line)) for line in lines) == len(recorded.schedule.choices)
    assert f"\n{RACE}  world size 4  replayed  " in out
    assert out.splitlines()[-1].startswith("as expected: fail, divergence.parameters, rank 0")


def test_from_and_to_show_some_of_the_steps(replay):
    _, out, _ = replay(RACE, token(RACE, 0, 2, 1), "--from", "3", "--to", "5")
    _, *lines = out.partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["3", "4", "5", "5"]  # the last send meets its receive at once


@pytest.mark.parametrize(
    ("words", "asked"), [(["--from", "5", "--to", "3"], "--from 5 --to 3"), (["--from", "999"], "--from 999")]
)
def test_no_step_to_show_is_one_line(replay, words, asked):
    status, out, err = replay("send-send", token("send-send"), *words)
    assert (status, out) == (ExitStatus.USAGE_ERROR, "")
    assert re.fullmatch(rf"ddpsim: {asked} selects no step, expected numbers from 0 to \d+: correct it\n", err)


def test_a_run_that_hangs_shows_its_steps_up_to_there(replay):
    name = "both-receive-first"
    status, out, _ = replay(name, token(name, 1, world_size=2), "--world-size", "2", "--step")
    *_, one, _, other = out.partition("\n\n")[0].splitlines()
    assert status == ExitStatus.AS_EXPECTED
    assert re.search(r"  1  wait    recv #0 .* from rank 0 ", one)
    assert re.search(r"  0  wait    recv #0 .* from rank 1 ", other)
    assert "DEADLOCK  deadlock.cycle" in out


STEPS = [
    TranscriptLine(number, 0.0, rank, "", "note", f"n{number}", None)
    for number, rank in enumerate([0, 1, 0, 2, 1, 1, 0])
]


@pytest.mark.parametrize(
    ("choices", "shown"),
    [
        (["q"], [0]),
        (["", "2", "r 1", "q"], [0, 1, 2, 3, 4]),
        (["r 1", "r 2", "r 2"], [0, 1, 2, 3, 4, 5, 6]),
        (["r  2", "100"], [0, 1, 2, 3, 4, 5, 6]),
        (["r 5"], [0, 1, 2, 3, 4, 5, 6]),
        (["?", "0", "-1", "r", "r x", "next", "q"], [0, *["help"] * 6]),
    ],
)
def test_walking_through_steps(choices, shown):
    given, lines = list(choices), []
    show_steps_interactively(STEPS, ask=lambda: given.pop(0), show=lines.append)
    head, *rest = lines
    assert head.split()[0] == "step"
    assert ["help" if line == HELP else int(line.rpartition("n")[2]) for line in rest] == shown
    assert given == []


def pretend_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")


def test_on_a_terminal_each_step_waits(monkeypatch, capsys):
    words = iter(["", "r 0", "q"])
    monkeypatch.setattr("builtins.input", lambda: next(words))
    pretend_terminal(monkeypatch)
    assert main(["replay", "send-send", token("send-send", 3), "--step"]) == ExitStatus.AS_EXPECTED
    help_line, _, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert help_line == HELP
    ranks = [int(re.search(r"  (\d)  (?:\w+  |goes on)", line)[1]) for line in lines]
    assert ranks[-1] == 0
    assert 0 not in ranks[2:-1]


def test_less_may_have_seen_enough(monkeypatch, tmp_path):
    def gone(*words, **options):
        raise BrokenPipeError

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr("builtins.print", gone)
        show_steps(STEPS)
        monkeypatch.undo()
        out.write("not seen")
    assert (tmp_path / "out").read_text() == ""


def test_end_of_input_ends_the_steps(monkeypatch, capsys):
    def ask():
        raise EOFError

    monkeypatch.setattr("builtins.input", ask)
    pretend_terminal(monkeypatch)
    assert main(["replay", "send-send", token("send-send"), "--step"]) == ExitStatus.AS_EXPECTED
    assert len(capsys.readouterr().out.partition("\n\n")[0].splitlines()) == 3


# --- a recording that is not followed ---------------------------------------------------------------------------------


def test_a_run_that_diverges_shows_both_sides_and_its_steps_up_to_there(replay, collects):
    name = collects(1)
    status, out, err = replay(name, token(name, 1, 0, 0, 3), "--step")
    assert status == ExitStatus.USAGE_ERROR
    first, recorded, is_open, *_ = err.splitlines()
    assert first.startswith("ddpsim: replay diverged at step 3: choice 3 of the schedule (which rank runs next)")
    assert recorded == "  recorded   takes option 3, so 4 or more were open"
    assert is_open.startswith("  open now   rank 0  next: issue recv #0  int64[]  from any source  ")
    assert "             rank 2  next: return\n" in err
    assert '  not open   rank 1  waits in send #0  int64[]  to rank 0  group "default"  collects.py:4\n' in err
    _, *steps = out.splitlines()
    assert [line.split()[0] for line in steps] == ["0", "1", "2"]
    assert steps[-1].endswith('1  wait    send #0  int64[]  to rank 0  group "default"  collects.py:4')


def test_lenient_goes_on_and_says_from_where(replay, collects):
    name = collects(1)
    status, out, err = replay(name, token(name, 1, 0, 0, 3), "--lenient")
    assert (status, err) == (ExitStatus.AS_EXPECTED, "")
    *_, note, conclusion = out.splitlines()
    assert note.startswith("replay diverged at step 3: choice 3 of the schedule (which rank runs next) takes")
    assert note.endswith("; the replay continued, and took each later choice modulo the number of options")
    assert conclusion == "as expected: pass"


def test_a_run_that_ends_early(replay, collects):
    name = collects(0)
    status, out, err = replay(name, token(name, 0, 0, 0, 1))
    assert (status, out) == (ExitStatus.USAGE_ERROR, "")
    assert err.startswith("ddpsim: replay diverged: the run ended after 3 choices, but the schedule has 1 more: ")


# --- files that say their schedule, and what was recorded -------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A file that says a schedule under which the race shows."""
    choices = run_scenario(RACE, policy="random", seed=3).schedule.choices
    path = tmp_path / "race.toml"
    path.write_text(
        f'ddpsim = 1\nsummary = "a race"\nscenario = "{RACE}"\nworld_size = 4\nschedule = "{choices_text(choices)}"\n'
    )
    return str(path)


def test_a_file_that_says_its_schedule_needs_no_token(replay, saved):
    status, out, err = replay(saved)
    assert (status, err) == (ExitStatus.AS_EXPECTED, "")
    assert "divergence.parameters" in out
    assert out.splitlines()[-1].startswith("as expected: ")


def test_a_token_wins_over_the_schedule_of_a_file(replay, saved):
    _, own, _ = replay(saved, "--step")
    _, out, _ = replay(saved, token(saved, 3), "--step")
    assert "  0 > 3 of 0-3 " in out
    assert "  0 > 3 of 0-3 " not in own.partition("\n\n")[0].splitlines()[1]


def as_saved(name, **changes):
    result = run_scenario(load(name))
    recorded = recorded_outcome_of(result)
    fields = {key: getattr(recorded, key) for key in ("verdict", "codes", "digest", "choices")}
    return RecordedOutcome(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": Verdict.PASS, "codes": ()}, "verdict: recorded pass; now fail"),
        ({"codes": (Code.DEADLOCK_CYCLE,)}, "findings: recorded deadlock.cycle; now divergence.parameters"),
        ({"choices": 99}, r"choices: recorded 99; now \d+, so it ended early"),
        ({"choices": 1}, r"choices: recorded 1; now \d+, so it ended late"),
        ({"digest": "00ff"}, r"digest of the trace: recorded 00ff; now [0-9a-f]{32}"),
    ],
)
def test_the_first_difference_from_what_was_recorded_is_told(replay, saved, monkeypatch, changes, said):
    recorded = as_saved(saved)
    assert recorded.choices > 10
    monkeypatch.setattr("ddpsim.scenarios.running.replaying.read_recorded_outcome", lambda name: recorded)
    status, out, _ = replay(saved)
    assert (status, "not as recorded" in out) == (ExitStatus.AS_EXPECTED, False)
    recorded = as_saved(saved, **changes)
    status, out, _ = replay(saved)
    *_, difference, conclusion = out.splitlines()
    assert status == ExitStatus.OTHERWISE
    assert re.fullmatch(f"not as recorded, though every recorded choice was possible: {said}", difference)
    assert conclusion.startswith("as expected: ")
    assert replay(saved, "--lenient")[0] == ExitStatus.AS_EXPECTED
    assert (
        replay(saved, str(Schedule((), program_identity(saved, 4))))[0] == ExitStatus.AS_EXPECTED
    )  # not what was recorded


FIRST_RUN_ONLY = """\
import os, torch.distributed as dist

def main(rank):
    dist.barrier()
    if rank == 1 and not os.path.exists("left"):
        open("left", "w").close()
        raise FileNotFoundError("vocabulary")
"""


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--lenient"], 0)])
def test_a_failure_that_a_file_of_the_first_run_mends_is_not_as_expected(ddpsim, tmp_path, options, status):
    (tmp_path / "own.py").write_text(FIRST_RUN_ONLY, encoding="utf-8")
    _, out, _ = ddpsim("run", "own.py:main", "--world-size", "2")
    (recorded,) = re.findall(r"s1:\S+", out)
    assert ":rank_error:" in recorded
    told, out, _ = ddpsim("replay", "own.py:main", recorded, "--world-size", "2", *options)
    assert told == status
    assert "as expected" not in out
    assert "  note    the token came from a run that found rank_error, which this one does not: " in out
    difference = "findings: recorded rank_error; now none\n"
    assert out.endswith(f"not as recorded, though every recorded choice was possible: {difference}")
    os.remove("left")
    told, out, _ = ddpsim("replay", "own.py:main", recorded, "--world-size", "2", *options)
    assert told == 1
    assert "not as expected: found fail, rank_error, rank 1; expected pass" in out
    assert "note  " not in out


def test_a_replay_in_python_says_that_it_found_something_else():
    def program(rank):
        if fails:
            raise ValueError("x")

    fails = True
    failed = simulate(program, 1)
    again = repeat(program, 1, failed.schedule)
    assert (again.unlike, str(again)) == ("", str(failed))
    fails = False
    passed = repeat(program, 1, str(failed.schedule))
    assert "the token came from a run that found rank_error" in passed.unlike
    assert passed.schedule.found == ""
    assert repeat(program, 1, passed.schedule).unlike == ""
