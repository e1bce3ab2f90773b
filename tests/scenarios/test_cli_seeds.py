"""`ddpsim run --seeds A..B` and `--fault`: counted, replayed by the line that is printed, and refused in one line."""

import re
import shlex

import pytest

from ddpsim import Crash, Delay, EarlyReturn, UsageError, simulate
from ddpsim.scenarios.running.run_as import fault_text, parse_fault
from tests.kit.own_programs import RACY


@pytest.fixture
def ddpsim(console, monkeypatch, tmp_path):
    """Run `ddpsim` beside the files racy.py and meet.py; returns status, stdout and stderr."""
    (tmp_path / "racy.py").write_text(RACY)
    (tmp_path / "meet.py").write_text("import torch.distributed as dist\n\ndef meet(rank):\n    dist.barrier()\n")
    monkeypatch.chdir(tmp_path)
    return lambda line: console(*shlex.split(line))


def test_seeds_are_counted_and_the_first_that_fails_is_shown_with_its_token(ddpsim):
    exec(RACY, space := {})
    failing = [seed for seed in range(3, 23) if simulate(space["racy"], 3, policy="random", seed=seed).errors]
    assert 0 < len(failing) < 20
    status, out, err = ddpsim("run --world-size 3 --seeds 3..22 racy.py:racy")
    assert (status, err) == (1, "")
    head, _, *rows = out.splitlines()
    assert re.fullmatch(r"racy.py:racy  world size 3  policy random, seeds 3 to 22  \d+ ms", head)
    passing = next(seed for seed in range(3, 23) if seed not in failing)
    counted = [
        (len(failing), f"fail, rank_error, rank 0  (first with seed {failing[0]})"),
        (20 - len(failing), f"pass  (first with seed {passing})"),
    ]
    assert rows[:2] == [f"{count:>2}  {what}" for count, what in sorted(counted, key=lambda row: -row[0])]
    assert (
        rows[-1] == f"not as expected: found fail, rank_error, rank 0; expected pass; with {len(failing)} of 20 seeds"
    )
    [line] = re.findall(r"^  replay  ddpsim (.*)$", out, re.MULTILINE)
    assert str(simulate(space["racy"], 3, policy="random", seed=failing[0]).schedule).split(":")[1] in line
    assert ddpsim(line)[0] == 1


def test_seeds_that_all_pass_are_one_line(ddpsim):
    status, out, _ = ddpsim("run join-baseline --world-size 2 --seeds 7..8 --policy pct")
    assert status == 0
    assert out.splitlines()[1:] == ["", "2  pass  (first with seed 7)", "", "as expected with each of 2 seeds"]
    status, out, _ = ddpsim("run join-baseline --world-size 2 --seeds 7")
    assert (status, out.splitlines()[-1]) == (0, "as expected with seed 7")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--seeds 3..1", "seeds are '3..1', expected FIRST..LAST, such as 0..99: correct it"),
        ("--seeds all", "seeds are 'all', expected FIRST..LAST, such as 0..99: correct it"),
        ("--seeds 0..9999999999", "seeds are '0..9999999999', expected FIRST..LAST, such as 0..99"),
        ("--seeds 0..3 --policy round_robin", "policy is 'round_robin', which uses no seed, expected"),
        ("--seeds 0..3 --seed 1", "found --seed 1 and --seeds 0..3, expected only one: leave one of them out"),
        ("--seeds 0..3 --transport processes", "policy is 'random' and seed 0, but real processes run freely"),
        ("--fault crash:rank=9,before_call=0", "Crash(rank=9, before_call=0, message='injected crash') names rank 9"),
        *(
            (f"--fault '{text}'", f"fault is {text!r}, expected crash:rank=R,before_call=N, early_return:")
            for text in (
                "",
                "crash",
                "crash:",
                "crush:rank=1,before_call=0",
                "crash:rank=1",
                "crash:rank=1,before_call=x",
                "crash:rank=1,before_call=0,seconds=2",
                "delay:rank=1,before_call=0",
                "crash:rank=1,rank=1,before_call=0",
            )
        ),
    ],
)
def test_bad_input_is_one_line(ddpsim, words, told):
    status, out, err = ddpsim(f"run {words} send-send")
    assert (status, out) == (2, "")
    assert err.startswith(f"ddpsim: {told}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crash:rank=1,before_call=3", Crash(1, 3)),
        ("crash:rank=1,before_call=3,message=power lost", Crash(1, 3, "power lost")),
        ("delay:rank=0,before_call=2,seconds=0.5", Delay(0, 2, 0.5)),
        ("early_return:rank=2,before_call=0", EarlyReturn(2, 0)),
    ],
)
def test_a_fault_is_what_its_text_says(text, fault):
    assert (parse_fault(text), fault_text(fault)) == (fault, text)
    with pytest.raises(UsageError, match=r"^fault is 'crash:rank=1,before_call=0,message=a,b'"):
        parse_fault("crash:rank=1,before_call=0,message=a,b")


def test_a_fault_strikes_and_the_replay_line_says_it_again(ddpsim):
    fault = "crash:rank=1,before_call=0,message='power lost'"
    status, out, _ = ddpsim(f'run --world-size 2 --fault "{fault}" racy.py:racy')
    assert status == 1
    assert "rank 1 raised InjectedCrashError: 'power lost'" in out
    [line] = re.findall(r"^  replay  ddpsim (.*)$", out, re.MULTILINE)
    assert "--fault" in line
    again = ddpsim(line)
    assert again[0] == 1
    assert again[1].splitlines()[1:-1] == out.splitlines()[1:-1]


def test_a_file_says_the_faults_of_what_it_was_made_from(ddpsim, tmp_path):
    words = "explore --fault crash:rank=1,before_call=0 --world-size 2 racy.py:racy -o found.toml"
    status, out, _ = ddpsim(words)
    assert status == 1
    assert "--fault crash:rank=1,before_call=0" in out
    fault = '[[fault]]\nkind = "crash"\nrank = 1\n'
    assert fault in (tmp_path / "found.toml").read_text()
    status, out, _ = ddpsim("run found.toml")
    assert "ERROR  rank_error" in out
    again = ddpsim(out.split("  replay  ddpsim ")[1].splitlines()[0])[1]  # it names the file and its fault: not twice
    assert again.splitlines()[1:-1] == out.splitlines()[1:-1]
    fault = "--fault crash:rank=2,before_call=0 --fault delay:rank=0,before_call=9,seconds=1"
    status, out, _ = ddpsim(f"shrink {fault} --world-size 4 meet.py:meet")
    assert (status, "injected crash" in out) == (0, True)
    assert "\nworld_size = 3\n" in (tmp_path / "meet-meet-shrunk.toml").read_text()
    assert "ERROR  rank_error" in ddpsim("run meet-meet-shrunk.toml")[1]


def test_seeds_say_that_a_wait_ended_by_an_error_which_was_caught(ddpsim, tmp_path):
    caught = "    try: rank or dist.barrier()\n    except RuntimeError: pass\n"
    (tmp_path / "caught.py").write_text(f"import torch.distributed as dist\n\ndef meet(rank):\n{caught}")
    status, out, _ = ddpsim("run --world-size 3 --seeds 0..2 caught.py:meet")
    assert (status, out.count("note  not checked: other schedules from where rank 0 waits for rank ")) == (0, 1)
    assert "not checked" not in ddpsim("run --world-size 3 --seeds 0..2 meet.py:meet")[1]


def test_seeds_fuzz_and_shrink_say_that_a_fault_did_not_strike(ddpsim):
    words = "run --world-size 2 --seeds 0..2 --fault crash:rank=1,before_call={} meet.py:meet"
    note = "note  in the first passing run the fault before call 9 of rank 1 did not happen"
    assert note in ddpsim(words.format(9))[1]
    assert "did not happen" not in ddpsim(words.format(0))[1]
    late = "--fault crash:rank=1,before_call=9"
    out = ddpsim(f"fuzz {late} --executions 1 --world-size 2 --engine torch meet.py:meet")[1]
    assert out.startswith("note  in the first passing run the fault before call 9 of rank 1 did not happen: ")
    err = ddpsim(f"shrink {late} --world-size 2 meet.py:meet")[2]
    assert " under this schedule is pass (the fault before call 9 of rank 1 did not happen: " in err
    status, out, _ = ddpsim("fuzz --fault crash:rank=3,before_call=0 --executions 1 --engine torch meet.py:meet")
    assert (status, "fails under every schedule tried" in out) == (1, True)
    err = ddpsim(f"fuzz {late} --generate")[2]
    assert err.startswith("ddpsim: found --fault without NAME, but random scenarios have their own: leave it out")
