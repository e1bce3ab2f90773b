"""The command line, in this process: what it prints, its exit status, and one line for whatever it cannot work with."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpsim.scenarios import registry
from ddpsim.scenarios.cli import main, output
from ddpsim.scenarios.cli.help import GROUPS
from ddpsim.scenarios.cli.output import indent_wrapped_lines
from ddpsim.scenarios.files import catalogue as catalogue_module
from ddpsim.scenarios.files.catalogue import read_catalogue
from ddpsim.simulator.run_options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ddpsim(console):
    """Run `ddpsim` with the words of a line; returns status, stdout and stderr."""
    return lambda line: console(*line.split())


BUG = """\
import torch.distributed as dist

from ddpsim.scenarios.model import finds, repairs, scenario
from ddpsim import Code


@scenario(expected=finds(Code.DEADLOCK_MISSING_RANK, {ranks}), tags=["mine"])
def leaves(rank):
    '''Rank 1 does not come.'''
    if rank != 1:
        dist.barrier(){marker}


@repairs(leaves)
def stays(rank):
    '''All come.'''
    dist.barrier()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")

    yield write
    for name in [name for name in sys.modules if name.startswith("ddpsim_program_")]:
        del sys.modules[name]


def bug(*, ranks=1, marker="  # found here"):
    return BUG.format(ranks=ranks, marker=marker)


def test_list_shows_all_but_the_repaired_twins_and_with_all_those_too(ddpsim):
    _, out, err = ddpsim("list")
    lines = out.splitlines()
    bugs = {name: scenario for name, scenario in registry.items() if not scenario.repairs}
    assert [line.split()[0] for line in lines] == list(bugs)
    assert all(scenario.summary in line for scenario, line in zip(bugs.values(), lines, strict=True))
    twins = [name for name in registry if name not in bugs]
    tags = sorted({tag for scenario in registry.values() for tag in scenario.tags})
    assert err.splitlines() == [
        f"ddpsim: repaired twins are not listed, such as {twins[0]}: --all lists them ({len(twins)})",
        f"ddpsim: --tag TAG lists only scenarios with that tag: {', '.join(tags)}",
    ]
    _, out, err = ddpsim("list --all")
    assert [line.split()[0] for line in out.splitlines()] == list(registry)
    assert "not listed" not in err


def test_list_on_a_terminal_keeps_within_its_width(ddpsim, monkeypatch):
    _, whole, _ = ddpsim("list")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "150")
    _, out, _ = ddpsim("list")
    heading, *lines = out.splitlines()
    assert heading == "--- bugs, and controls"
    middle = lines.index("--- the join matrix: cases of `join()` with uneven inputs")
    assert lines[middle - 1] == ""
    bugs, matrix = lines[: middle - 1], lines[middle + 1 :]
    assert {line.split()[0] for line in matrix} == {
        name for name, each in registry.items() if "join-matrix" in each.tags
    }
    assert len(bugs) + len(matrix) == len(whole.splitlines())
    assert max(map(len, lines)) == 150
    assert any(line.endswith("\N{HORIZONTAL ELLIPSIS}  [under ddp: pass]") for line in bugs)


def test_list_by_tags(ddpsim, write):
    write("one.toml", 'summary = "one"\ntags = ["join", "slow"]\n')
    write("two.toml", 'summary = "two"\ntags = ["join"]\n')
    assert ddpsim("list --tag join .") == (0, "one.toml  pass  one\ntwo.toml  pass  two\n", "")
    assert ddpsim("list --tag join --tag slow .") == (0, "one.toml  pass  one\n", "")


def test_list_of_own_files_gives_what_run_takes(ddpsim, write):
    write("mine.py", bug())
    write("even.toml", 'summary = "all have as much"\n')
    write("_part.py", "raise RuntimeError('not looked at')")
    write("notes.txt", "not looked at")
    status, out, err = ddpsim("list .")
    assert status == 0
    assert out.splitlines() == [
        "even.toml       pass                                 all have as much",
        "mine.py:leaves  fail, deadlock.missing_rank, rank 1  Rank 1 does not come.",
    ]
    assert err.splitlines() == [
        "ddpsim: repaired twins are not listed, such as mine.py:stays: --all lists them (1)",
        "ddpsim: --tag TAG lists only scenarios with that tag: mine",
    ]
    for name in ("even.toml", "mine.py:leaves", "mine.py:stays"):
        assert ddpsim(f"run {name}")[0] == 0


def test_list_names_what_run_finds_where_functions_are_called_otherwise(ddpsim, write):
    write(
        "made.py",
        "from ddpsim.scenarios import scenario\n\n"
        "def maker(number):\n    def made(rank):\n        return number\n    return made\n\n"
        "one = scenario(about='one')(maker(1))\nalias = one\ntwo = scenario(about='two', name='b')(lambda rank: 2)\n",
    )
    _, out, _ = ddpsim("list made.py")
    assert out == "made.py:one  pass  one\nmade.py:two  pass  two\n"
    assert ddpsim("run made.py:one")[0] == ddpsim("run made.py:two")[0] == 0


def test_a_name_that_no_file_can_have_is_one_line(ddpsim, write):
    name = "x" * 300 + ".toml"
    status, _, err = ddpsim(f"list {name}")
    assert (status, err.count("\n")) == (2, 1)
    assert re.search(r"which cannot be read \(.+\): correct the path$|which does not exist: correct the path$", err)
    write("good.toml", 'summary = "fine"')
    write("deep.toml", f"a = {'[' * 5000}")
    write("long.toml", f"seed = {'1' * 5000}")
    status, out, err = ddpsim("list .")
    assert (status, out, err.count("\n")) == (1, "good.toml  pass  fine\n", 2)


def test_a_file_that_cannot_be_loaded_takes_no_other_with_it(ddpsim, write):
    write("bad.py", "import os\n\nraise ValueError('on import')\n")
    write("bad.toml", "world_sise = 3\n")
    write("good.toml", 'summary = "fine"\n')
    status, out, err = ddpsim("list .")
    assert (status, out) == (1, "good.toml  pass  fine\n")
    first, second = err.splitlines()
    assert first.startswith("ddpsim: bad.py:3 raised ValueError: on import while it was imported, expected it to")
    assert second.startswith("ddpsim: bad.toml:1:")
    assert "'world_size'" in second
    write("bad.py", "def broken(:\n")
    status, out, err = ddpsim("list bad.py --tag any")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"ddpsim: bad.py:1 raised SyntaxError: .*\n", err)


def test_broken_files_of_ours_are_told(ddpsim, monkeypatch, tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "bad.toml").write_text("=")
    (tmp_path / "zoo" / "good.toml").write_text('summary = "fine"')
    own = read_catalogue(tmp_path, ("zoo",))
    monkeypatch.setattr(catalogue_module, "read_catalogue", lambda: own)
    status, out, err = ddpsim("list")
    assert (status, out) == (1, "good  pass  fine\n")
    assert re.fullmatch(r"ddpsim: \S*bad\.toml cannot be listed \(.*\): run it to see what is wrong\n", err)


def test_both_engines_one_after_the_other(ddpsim):
    status, out, err = ddpsim("run send-send --engine both --world-size 2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    ours = lines.index("--- ddp")
    assert lines[0] == "--- torch"
    assert re.fullmatch(r"send-send  world size 2  policy round_robin  \d+ ms", lines[1])
    assert re.fullmatch(r"send-send  world size 2  engine ddp  policy round_robin  \d+ ms", lines[ours + 1])
    assert [line for line in lines if line.startswith("as expected")] == [
        "as expected: fail, deadlock.cycle, ranks 0, 1"
    ] * 2
    assert lines[-3].endswith(" --world-size 2 --engine ddp")
    assert lines[2 : ours - 1] == [line.removesuffix(" --engine ddp") for line in lines[ours + 2 :]]


def test_each_engine_is_judged_by_what_is_expected_of_it(ddpsim, write):
    expects = 'summary = "s"\n[expect]\nfinding = "rank_error"\nranks = [0]\n'
    write("torchs.toml", expects)
    write("both.toml", expects + "[expect.ddp]\n")
    wrong = "not as expected: found pass; expected fail, rank_error, rank 0"
    for name, engine, status, conclusion in [
        ("torchs.toml", "torch", 1, wrong),
        ("torchs.toml", "ddp", 1, wrong),
        ("both.toml", "ddp", 0, "as expected: pass"),
        ("both.toml", "both", 1, "as expected: pass"),
    ]:
        found, out, _ = ddpsim(f"run {name} --engine {engine}")
        assert (found, out.splitlines()[-1]) == (status, conclusion)


@pytest.mark.parametrize(
    ("text", "status", "conclusion"),
    [
        (bug(), 0, "as expected: fail, deadlock.missing_rank, rank 1"),
        (
            bug(ranks=2),
            1,
            "not as expected: found fail, deadlock.missing_rank, rank 1; expected fail, deadlock.missing_rank, rank 2",
        ),
        (
            bug(marker="") + "# found here\n\n# found here\n",
            1,
            "not as expected: found fail, deadlock.missing_rank, rank 1 at mine.py:11; "
            "expected it at mine.py:18 or mine.py:20",
        ),
    ],
    ids=["right", "wrong rank", "wrong line"],
)
def test_conclusion(ddpsim, write, text, status, conclusion):
    write("mine.py", text)
    found, out, _ = ddpsim("run mine.py:leaves")
    assert (found, out.splitlines()[-1]) == (status, conclusion)


RACE = """\
import torch
import torch.distributed as dist

from ddpsim.scenarios.model import CLEAN, finds, scenario
from ddpsim import Code


@scenario(expected=finds(Code.{code}, 1, shows=4, otherwise=CLEAN), world_size=2)
def looks_too_early(rank):
    '''Rank 1 comes only if the message is there.'''
    message = dist.broadcast(torch.zeros(1), src=0, async_op=True)
    if rank == 0 or message.is_completed() is {comes_if}:
        dist.barrier()
    message.wait()
"""


@pytest.mark.parametrize(
    ("code", "comes_if", "status", "conclusion"),
    [
        (
            "DEADLOCK_MISSING_RANK",
            True,
            0,
            "as expected: pass (it depends on the interleaving: so in 6 of 10 random schedules, "
            "else fail, deadlock.missing_rank, rank 1)",
        ),
        (
            "DEADLOCK_MISSING_RANK",
            False,
            0,
            "as expected: fail, deadlock.missing_rank, rank 1 (it depends on the interleaving: so in 4 of 10 random "
            "schedules, else pass without a finding)",
        ),
        (
            "DEADLOCK_DEAD_RANK",
            False,
            1,
            "not as expected: found fail, deadlock.missing_rank, rank 1; expected fail, deadlock.dead_rank, rank 1 in "
            "4 of 10 random schedules, else pass without a finding (it depends on the interleaving)",
        ),
    ],
)
def test_conclusion_where_it_depends_on_the_interleaving(ddpsim, write, code, comes_if, status, conclusion):
    # Round robin lets rank 0 send before rank 1 looks.
    write("race.py", RACE.format(code=code, comes_if=comes_if))
    found, out, _ = ddpsim("run race.py:looks_too_early")
    assert (found, out.splitlines()[-1]) == (status, conclusion)


@pytest.mark.parametrize("command", ["", "list", "run", "replay", "zoo"])
def test_help_ends_with_an_example_that_works(ddpsim, command):
    status, out, err = ddpsim(f"{command} --help")
    assert (status, err) == (0, "")
    introduction, _, example = " ".join(out.split()).rpartition(" Example: ddpsim ")
    assert introduction
    assert example.startswith(command)
    assert ddpsim(example)[0] == 0


def test_without_a_command_there_is_the_help(ddpsim):
    assert ddpsim("") == ddpsim("--help")


def test_help_shows_the_options_in_groups(ddpsim):
    _, out, _ = ddpsim("run --help")
    groups = dict(re.findall(r"^(\w+):\n((?:  .*\n)+)", out, re.M))
    assert list(groups) == list(GROUPS)
    for group, options in (
        ("Program", "NAME --engine"),
        ("Ranks", "--world-size --gpus"),
        ("Schedule", "--policy --seeds"),
        ("Checks", "--fault --check"),
        ("Output", "--lanes --report"),
        ("Options", "-h"),
    ):
        assert re.findall(r"^  (NAME|--?[a-z-]+)", groups[group], re.M)[0] == options.split()[0]
        assert all(f"\n  {each}" in f"\n{groups[group]}" for each in options.split())
    grouped = " ".join(GROUPS.values()).split()
    assert [name for name, forms in OPTIONS.items() if forms.help and name not in grouped] == []


def test_sentences_are_wrapped_with_an_indent_and_commands_are_not():
    text = (
        "  cause   rank 1 ran out of input\n  replay  ddpsim replay uneven-inputs s1:0\n\nas expected: fail, deadlock"
    )
    assert indent_wrapped_lines(text, 24).splitlines() == [
        "  cause   rank 1 ran out",
        "          of input",
        *text.splitlines()[1:],
    ]
    assert indent_wrapped_lines(text, 80) == text


def test_the_c_locale_has_no_dot(ddpsim, monkeypatch):
    monkeypatch.delenv("LC_ALL", raising=False)
    for locale, sign in (("C", "-"), ("C.UTF-8", "\N{MIDDLE DOT}")):
        monkeypatch.setenv("LANG", locale)
        assert f"arrived 0, 2, 3 {sign} missing 1" in ddpsim("run uneven-inputs-without-join")[1]


def test_on_a_terminal_the_text_is_the_same_with_colours(monkeypatch, capsys):
    main(["run", "send-send"])
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["run", "send-send"])
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert without_colours.splitlines()[1:] == plain.splitlines()[1:]


@pytest.mark.tier("ci")
def test_help_lists_and_mistyped_options_need_no_torch():
    program = (
        "import sys; from ddpsim.scenarios.cli import main\n"
        "assert not any(main([command, '--help']) for command in ('list', 'run', 'replay', 'zoo'))\n"
        "assert main(['list', '--tag', 'join']) == 0\n"
        "assert main(['run', 'x', '--sede', '3']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.tier("nightly")
def test_the_installed_command():
    command = shutil.which("ddpsim", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("ddpsim is not installed beside this Python: pip install -e .")
    done = subprocess.run([command, "run", "send-sent"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddpsim: scenario is 'send-sent'")
    assert done.stderr.count("\n") == 1


def test_the_first_run_of_a_process_prints_for_how_long_the_user_has_waited_and_how_much_was_loading():
    now = time.perf_counter()
    output.BEGAN.set(now - 3)
    found = re.fullmatch(r"(\d+) ms, 2000 ms of it to load", output.time_since_start(now - 1))
    assert found is not None
    assert 3000 <= int(found[1]) < 4000
    assert re.fullmatch(r"1\d\d\d ms", output.time_since_start(now - 1))  # a further one only its own time
