"""The command line, in this process: what it prints, its exit status, and one line for whatever it cannot work with."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import registry, run_scenario
from scenarios.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ddpsim(capsys):
    """Run `ddpsim` with the words of a line; returns status, stdout and stderr."""

    def run(line):
        status = main(line.split())
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_list(ddpsim):
    status, out, err = ddpsim("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(registry)
    assert all(registry[line.split()[0]].summary in line for line in lines)


def test_run_prints_head_text_and_conclusion(ddpsim):
    status, out, err = ddpsim("run send-send --world-size 2")
    assert (status, err) == (0, "")
    head, blank, *text, blank_too, conclusion = out.splitlines()
    assert re.fullmatch(r"send-send  world size 2  policy round_robin  \d+ ms", head)
    assert blank == blank_too == ""
    assert "\n".join(text) == str(run_scenario("send-send", world_size=2))
    assert text[-1].startswith("  replay  ddpsim replay send-send s1:")
    assert text[-1].endswith(" --world-size 2")
    assert conclusion == "as expected: fail, deadlock.cycle, ranks 0, 1"


def test_run_of_a_scenario_that_passes(ddpsim):
    status, out, _ = ddpsim("run uneven-inputs")
    assert status == 0
    assert out.splitlines()[-1] == "as expected: pass"


def test_what_a_report_says_to_paste_shows_the_same(ddpsim):
    _, out, _ = ddpsim("run unused-parameters-without-flag --policy random --seed 7")
    (line,) = [line for line in out.splitlines() if line.startswith("  replay  ")]
    command = line.split()[1:]
    assert command.pop(0) == "ddpsim"
    status, again, _ = ddpsim(" ".join(command))
    assert status == 0
    assert again.splitlines()[1:] == out.splitlines()[1:]


def test_seed_stands_in_the_head(ddpsim):
    _, out, _ = ddpsim("run send-send --policy random --seed 7")
    assert "policy random, seed 7" in out.splitlines()[0]


def test_another_verdict_than_expected_is_1(ddpsim, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, out, _ = ddpsim("run examples/hang.py:train")
    assert status == 1
    assert out.splitlines()[-1] == "not as expected: found fail, deadlock.missing_rank, rank 2; expected pass"


def test_unknown_is_3(ddpsim, tmp_path):
    path = tmp_path / "spins.py"
    path.write_text(
        "import torch, torch.distributed as dist\n"
        "def spin(rank):\n"
        "    work = dist.irecv(torch.zeros(1), src=0)\n"
        "    while rank and not work.is_completed():\n"
        "        pass\n"
        "    work.wait()\n"
    )
    status, out, _ = ddpsim(f"run {path}:spin --world-size 2")
    assert status == 3
    assert out.splitlines()[-1] == "unknown: found unknown, budget, rank 1; expected pass"


@pytest.mark.parametrize("command", ["", "list", "run", "replay"])
def test_help_shows_an_example(ddpsim, command):
    status, out, err = ddpsim(f"{command} --help")
    assert (status, err) == (0, "")
    assert f"Example: ddpsim {command}" in out


TOKEN = "s1:0:e2f90957"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Missing command; expected one of list, run, replay; see `ddpsim --help`"),
        ("runn", "No such command 'runn'.*; expected one of list, run, replay; see `ddpsim --help`"),
        ("--verbose", "No such option: --verbose; see `ddpsim --help`"),
        ("list all", "Got unexpected extra argument.*; see `ddpsim list --help`"),
        ("run", "Missing argument 'NAME'; see `ddpsim run --help`"),
        ("run send-send --sede 3", "No such option: --sede.*; see `ddpsim run --help`"),
        ("run send-send --world-size", "Option '--world-size' requires an argument; see `ddpsim.* --help`"),
        ("run send-send --world-size four", "Invalid value for '--world-size': .*; see `ddpsim run --help`"),
        ("run send-send --seed 1.5", "Invalid value for '--seed': .*; see `ddpsim run --help`"),
        ("replay send-send", "Missing argument 'TOKEN'; see `ddpsim replay --help`"),
        ("run send-send --world-size 0", "world size is 0, send-send expects 2 or more: give it more ranks"),
        ("run send-send --world-size -1", "world size is -1, send-send expects 2 or more: give it more ranks"),
        ("run examples/hang.py:train --world-size 0", "world size is 0, examples/hang.py:train expects 1 or more: .*"),
        ("run send-sent", "scenario is 'send-sent', expected .*: did you mean 'send-send'\\?"),
        ("replay send-sent " + TOKEN, "scenario is 'send-sent', expected .*: did you mean 'send-send'\\?"),
        ("run send-send --policy fair", "policy is 'fair', expected one of round_robin, random: .*"),
        ("replay rank-crash " + TOKEN, "replay token .* was recorded for another program or world size than .*: .*"),
        ("replay send-send s9:0:e2f90957", "replay token .* has version s9, this ddpsim reads s1: .*"),
        ("replay send-send s1:0:e2f909", "replay token .* is not whole, expected something like .*: copy .*"),
        ("replay send-send s1:1.2:e2f90957", "replay token .* does not match its own checksum, .*: copy it again .*"),
        ("replay send-send hello", "replay token 'hello' is not whole, expected something like .*: copy .*"),
    ],
)
def test_usage_errors_are_one_line_and_2(ddpsim, monkeypatch, line, message):
    monkeypatch.chdir(ROOT)
    status, out, err = ddpsim(line)
    assert (status, out) == (2, "")
    assert re.fullmatch(f"ddpsim: {message}\n", err)


def test_replay_of_a_program_that_has_changed_is_a_usage_error(ddpsim, tmp_path):
    path = tmp_path / "changes.py"
    path.write_text(
        "import torch.distributed as dist\ndef main(rank):\n    for _ in range(5):\n        dist.barrier()\n"
    )
    _, out, _ = ddpsim(f"run {path}:main --policy random --world-size 8")
    (token,) = re.findall(r" (s1:\S+) ", out)
    path.write_text("def main(rank):\n    pass\n")
    status, out, err = ddpsim(f"replay {path}:main {token} --world-size 8")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"ddpsim: replay diverged at step \d+: .*\n", err)


def test_errors_of_ours_are_not_hidden(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("scenarios.runner.run_scenario", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["run", "send-send"])


def test_on_a_terminal_the_text_is_the_same_with_colours(monkeypatch, capsys):
    main(["run", "send-send"])
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["run", "send-send"])
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert without_colours.splitlines()[1:] == plain.splitlines()[1:]


def test_help_and_mistyped_options_need_no_torch():
    program = (
        "import sys; from scenarios.cli import main\n"
        "assert main(['run', '--help']) == 0 and main(['run', 'x', '--sede', '3']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


def test_the_installed_command():
    command = shutil.which("ddpsim", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("ddpsim is not installed beside this Python: pip install -e .")
    done = subprocess.run([command, "run", "send-sent"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddpsim: scenario is 'send-sent'")
    assert done.stderr.count("\n") == 1
