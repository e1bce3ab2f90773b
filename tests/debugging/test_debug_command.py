"""`ddpsim debug`: sessions whose commands are typed, or come from a file, and what is printed."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from ddpsim import UsageError, simulate
from ddpsim.scenarios.cli import main
from tests.debugging.typist import typed

RACE = """\
import torch
import torch.distributed as dist


def collect(rank):
    if rank:
        dist.send(torch.tensor(rank), dst=0)
        return
    message = torch.tensor(0)
    first = dist.recv(message)
    dist.recv(message)
    assert first == 1, first


def hang(rank):
    for number in range(2 if rank == 1 else 3):
        dist.barrier()


def differs(rank):
    if rank:
        dist.barrier()
    else:
        dist.all_reduce(torch.zeros(1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    collect(dist.get_rank())
    dist.destroy_process_group()
"""

CI = pytest.mark.tier("ci")
NIGHTLY = pytest.mark.tier("nightly")
BY_HAND = "s1:0.0.2:"
"""How the token of the schedule begins under which the message of rank 2 comes first."""


@pytest.fixture
def debug(tmp_path, monkeypatch):
    """Run a session of commands: exit status and all that was printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "race.py").write_text(RACE)

    def run(arguments, *commands):
        (tmp_path / "typed").write_text("\n".join(commands))
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            status = main(["debug", "--world-size", "3", "--commands", "typed", *arguments])
        return status, output.getvalue()

    return run


FUNCTION, HANGS = ["race.py:collect"], ["race.py:hang"]

SESSIONS = {
    "begins at the first line of rank 0": (FUNCTION, ["q"], ["> race.py(6)collect()\n-> if rank:\n(rank 0) q\n"]),
    "begins in another rank": (["--rank", "2", *FUNCTION], ["p rank", "q"], ["(rank 2) p rank\n2\n"]),
    "next call": (
        FUNCTION,
        ["next call", "q"],
        ['(rank 0) next call\nstep 1: rank 0 makes recv #0  int64[]  from any source  group "default"\n> race.py(10)'],
    ),
    "until a call": (
        HANGS,
        ["until call barrier #1", "slots", "q"],
        ["rank 2 makes barrier #1", "(rank 2) slots\n  no call waits for another\n"],
    ),
    "slots where calls differ": (
        ["--finding", "race.py:differs"],
        ["slots", "q"],
        ["MISMATCH  mismatch.operation", "slots\n  calls that should match differ: type `why` to see how\n"],
    ),
    "until a call that is not made": (
        FUNCTION,
        ["until call all_reduce #9", "c"],
        ["no rank reached all_reduce #9 after that"],
    ),
    "until what is no call": (FUNCTION, ["until call 9", "q"], ["*** found 'call 9', expected an operation and its"]),
    "a step": (["--at", "3", *HANGS], ["ranks", "q"], ["step 3: rank 1 is next\n", "rank 1  paused here"]),
    "a step that is not there": (["--at", "4000", *HANGS], ["q"], ["there is no step 4000: the run ends at step "]),
    "a finding": (
        ["--finding", *HANGS],
        ["ranks", "rank 1", "p number", "rank 2", "p number", "q"],
        [
            "DEADLOCK  deadlock.missing_rank",
            "*** rank 1 has returned: its program has no frame left to show",
            "(rank 0) p number\n2\n",
            "(rank 2) p number\n2\n",
        ],
    ),
    "back from a finding": (
        ["--finding", *HANGS],
        ["back", "back", "q"],
        ["step 20: rank 0 is next\n> race.py(17)hang()", "step 19: rank 0 is next\n> race.py(17)hang()\n"],
    ),
    "back to a call": (["--finding", *HANGS], ["back call", "p number", "q"], ["makes barrier #2", "p number\n2\n"]),
    "back call by call": (
        ["--finding", *HANGS],
        ["back call", "back call", "back call", "back call", "q"],
        [
            "makes barrier #2",
            "makes barrier #1",
            "makes barrier #0",
            "*** cannot go back: rank 0 has made no call yet",
        ],
    ),
    "back at the beginning": (
        ["--at", "0", *HANGS],
        ["back", "p rank", "q"],
        ["*** cannot go back: this is the beginning", "p rank\n0\n"],
    ),
    "back with another word": (HANGS, ["back home", "q"], ["*** back takes `call` or no argument, found 'home'"]),
    "a race by hand": (
        FUNCTION,
        ["next call", "switch 2", "c", "p first", "save", "q"],
        [
            "(rank 2) c\nrank 0 raised AssertionError: 2\n",
            "(rank 0) p first\n2\n",
            f"ddpsim replay race.py:collect {BY_HAND}",
        ],
    ),
    "switch to one that waits": (
        ["--at", "3", *HANGS],
        ["switch 0", "q"],
        ['*** rank 0 waits in barrier #0  group "default" and cannot run'],
    ),
    "switch to one that has ended": (["--finding", *HANGS], ["switch 1", "q"], ["*** rank 1 has ended and cannot run"]),
    "switch to nobody": (
        HANGS,
        ["switch 9", "switch x", "q"],
        ["*** rank is '9', expected 0 to", "*** rank is 'x', exp"],
    ),
    "a file that is there": (
        FUNCTION,
        ["save race.py", "q"],
        ["*** output is 'race.py', expected a name that ends in"],
    ),
    "the end of the commands": (FUNCTION, ["p rank"], ["(rank 0) p rank\n0\n(rank 0) \n"]),
    "from a stop to the next line": (
        FUNCTION,
        ["next call", "n", "p first", "q"],
        ["-> dist.recv(message)\n(rank 0) p"],
    ),
    "a breakpoint holds in all ranks, and after going back": (
        HANGS,
        [
            *("b 17, number == 1", "commands 1", "p number * 7", "end"),
            *("c", "p rank", "c", "p rank", "back call", "c", "p rank", "cl 1", "c", "q"),
        ],
        ["(rank 2) p rank\n2\n(rank 2) c\n7\n> race.py(17)", "(rank 0) p rank", "(rank 2) p rank", "DEADLOCK"],
    ),
    "back to a call that differs": (
        ["--finding", "race.py:differs"],
        ["rank 2", "back call", "n"],
        ["mismatch.operation", "rank 2 makes barrier #0", "mismatch.operation"],
    ),
    "an interpreter, and what pdb has for programs of its own": (
        ["--rank", "1", *HANGS],
        ["interact", "y = rank + 6", "y", "exit()", "restart", "q"],
        [">>> y\n", "\n>>> exit()\n(rank 1) restart\n*** cannot restart a run here"],
    ),
    "a breakpoint for once, of another rank": (
        ["--at", "3", *HANGS],
        ["rank 0", "tbreak 17", "c", "p number", "c", "q"],
        ["(rank 0) c\nDeleted breakpoint 1", "-> dist.barrier()\n(rank 2) p number\n0\n", "DEADLOCK"],
    ),
}
IN_PROCESSES = (
    "a breakpoint holds in all ranks, and after going back",
    "back to a call that differs",
    "a finding",
    "a race by hand",
    "back from a finding",
    "until a call",
    "begins in another rank",
)
CASES = [
    *(pytest.param(name, [], id=f"{name}-thread") for name in SESSIONS),
    *(
        pytest.param(
            name, ["--isolation", "process"], id=f"{name}-process", marks=CI if name in IN_PROCESSES else NIGHTLY
        )
        for name in SESSIONS
        if name not in ("until a call",)
    ),
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_session(debug, name, how):
    arguments, commands, shown = SESSIONS[name]
    status, said = debug([*how, *arguments], *commands)
    at = 0
    for text in shown:
        assert text in said[at:], said
        at = said.index(text, at)
    assert "Traceback" not in said
    assert "Unwound" not in said
    if commands[-1] == "q":
        assert status == 0


def test_what_was_made_by_hand_is_replayed(debug, tmp_path):
    _, said = debug(FUNCTION, "next call", "switch 2", "c", "save made.toml", "save", "q")
    assert "saved in made.toml; to run it: ddpsim run made.toml" in said
    token = said.partition("ddpsim replay race.py:collect ")[2].split()[0]
    for command in (["replay", "race.py:collect", token, "--world-size", "3"], ["run", "made.toml"]):
        output = io.StringIO()
        with redirect_stdout(output):
            main(command)
        assert "rank 0 raised AssertionError: 2" in output.getvalue()
    status, said = debug([*FUNCTION, token, "--finding"], "p first", "q")
    assert (status, "(rank 0) p first\n2\n" in said) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rank", "9", *FUNCTION], "--rank is 9, expected one of 0 to 2: race.py:collect has no other"),
        (["--at", "soon", *FUNCTION], "--at is 'soon', expected the number of a step"),
        (["--at", "3", "--finding", *FUNCTION], "found --at and --finding, expected one first stop: leave"),
        ([*HANGS, "s1:0:e2f90957"], "was recorded for another program"),
        ([*HANGS, "s1:0:1"], "is not valid, expected something like"),
        (["--commands", "nothing", *FUNCTION], "ddpsim: --commands is 'nothing', which cannot be read"),
    ],
)
def test_bad_input_is_one_line(debug, arguments, line):
    status, said = debug(arguments, "q")
    assert (status, said.count("\n"), line in said) == (2, 1, True), said


def test_typed_at_a_terminal(debug):
    with typed("next call", "back", "ranks", "c") as typist:
        status = main(["debug", "--world-size", "3", "race.py:collect"])
    assert (status, "(rank 0) back\nstep 0: rank 0 is next\n> race.py(10)" in typist.transcript) == (0, True)


@CI
def test_a_script_as_it_is(debug):
    status, said = debug(["race.py"], "n", "next call", "until call recv #1", "ranks", "rank 1", "w", "q")
    assert status == 0
    assert "> race.py(1)<module>()\n-> import torch\n(rank 0) n\n" in said
    assert "rank 0 makes recv #1" in said


def test_a_run_without_it_says_so():
    def program(rank):
        if rank == 0:
            breakpoint()

    with typed("back", "save", "next call", "c") as typist:
        simulate(program, 2)
    assert typist.transcript.count("works only in a run that `ddpsim debug` has started") == 3
    with pytest.raises(UsageError):
        simulate(program, 0)
