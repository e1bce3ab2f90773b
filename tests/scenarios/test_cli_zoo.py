"""`ddpsim zoo`: the table, the text of what surprises, and the exit status."""

import importlib
import re
import sys

import pytest
import torch.distributed as dist

from ddpsim import Budget, InternalError, UsageError, simulate
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.files.loader import Registry

RIGHT = 'summary = "nobody runs out of input"\ntags = ["right"]\n'
WRONG = RIGHT.replace("right", "wrong") + '[expect]\nfinding = "rank_error"\nranks = [0]\n'
OF_TORCH = WRONG.replace("wrong", "torch") + "[expect.ddp]\n"
SURPRISE = "not as expected: found pass; expected fail, rank_error, rank 0"


@pytest.fixture
def zoo(console):
    """Run `ddpsim zoo` with the words of a line; returns status, stdout without times, and stderr."""

    def run(line=""):
        status, out, err = console("zoo", *line.split())
        out = re.sub(r"(  +\d+)(?=  [=!?] )", lambda time: f"{'TIME':>{len(time[1])}}", out)
        return status, re.sub(r"\d+\.\d s$", "TIME s", out.rstrip("\n")).splitlines(), err

    return run


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Let these TOML texts be all the scenarios that come with ddpsim."""

    def own(**texts):
        (tmp_path / "zoo").mkdir()
        for name, text in texts.items():
            (tmp_path / "zoo" / f"{name}.toml").write_text(text, encoding="utf-8")
        registry = Registry(tmp_path, ("zoo",))
        monkeypatch.setattr(importlib.import_module("ddpsim.scenarios.files.loader"), "registry", registry)

    return own


def test_all_as_expected(zoo, own):
    own(one=RIGHT, another=RIGHT)
    assert zoo() == (
        0,
        [
            "name        ms    expected",
            "another   TIME  = pass",
            "one       TIME  = pass",
            "",
            "2 scenarios as expected, 0 surprises, TIME s",
        ],
        "",
    )


def test_a_surprise_is_marked_and_told_at_the_end(zoo, own):
    own(one=RIGHT, two=WRONG)
    status, out, err = zoo()
    assert (status, err) == (1, "")
    assert out == [
        "name     ms    expected",
        "one    TIME  = pass",
        "two    TIME  ! rank_error, rank 0; found pass",
        "",
        "--- two, engine torch",
        *str(run_scenario("two")).splitlines(),
        "",
        SURPRISE,
        "",
        "1 scenario as expected, 1 surprise, TIME s",
    ]


def test_both_engines_have_a_row_each(zoo, own):
    own(one=RIGHT, two=OF_TORCH)
    status, out, _ = zoo("--engine both")
    assert status == 1
    assert out[:5] == [
        "name  by        ms    expected",
        "one   torch   TIME  = pass",
        "one   ddp     TIME  = pass",
        "two   torch   TIME  ! rank_error, rank 0; found pass",
        "two   ddp     TIME  = pass",
    ]
    assert [line for line in out if line.startswith("---")] == ["--- two, engine torch"]
    assert out[-1] == "3 runs as expected, 1 surprise, TIME s"
    assert zoo("two --engine ddp")[0] == 0


def test_twins_stand_below_their_bug(zoo):
    rows = ["group-order-inversion", "group-order-inversion-repaired", "send-send", "send-send-repaired"]
    for line, names in [
        ("send-send group-order-inversion", rows),
        ("send-send group-order-inversion --no-repaired", rows[::2]),
        ("send-send", rows[2:]),
        ("send-send-repaired --no-repaired", rows[3:]),
        ("send-send group-order-inversion --tag point-to-point", rows[2:]),
    ]:
        status, out, err = zoo(line)
        assert (status, err) == (0, "")
        assert [row.split()[0] for row in out[1:-2]] == names
        assert out[-1] == f"{len(names)} scenario{'s' if len(names) > 1 else ''} as expected, 0 surprises, TIME s"


def test_a_scenario_of_ones_own(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(WRONG)
    status, out, _ = zoo("mine.toml")
    assert (status, out[1]) == (1, "mine.toml   TIME  ! rank_error, rank 0; found pass")
    assert out[-3] == SURPRISE


def test_what_is_found_has_a_line_of_its_own_where_it_would_not_fit(zoo, own):
    name = "n" * 60
    own(**{name: WRONG})
    _, out, _ = zoo()
    assert out[1:3] == [f"{name}   TIME  ! rank_error, rank 0;", f"{'':{60 + 2 + 5 + 2}}  found pass"]
    assert max(map(len, out[:3])) <= 100


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("one line of ours"), r"UsageError: one line of ours"),
        (InternalError("a bug of ours"), r"Traceback \(most recent call last\):\n.*\n.*InternalError: a bug of ours"),
    ],
)
def test_an_error_in_one_entry_ends_no_other(zoo, own, monkeypatch, error, text):
    own(a=RIGHT, b=RIGHT, c=RIGHT)

    def fails_on_b(scenario, engine, **options):
        if scenario.name == "b":
            raise error
        return run_scenario(scenario, engine, **options)

    monkeypatch.setattr("ddpsim.scenarios.cli.zoo_outcome.run_scenario", fails_on_b)
    status, out, _ = zoo()
    assert status == 1
    assert [row.split()[2] for row in out[1:4]] == ["=", "!", "="]
    assert out[2].endswith(f"! pass; found {type(error).__name__}")
    assert re.fullmatch(rf"--- b, engine torch\n{text}", "\n".join(out[5:-2]), re.DOTALL)
    assert out[-1] == "2 scenarios as expected, 1 surprise, TIME s"


def test_unknown_is_3_unless_another_surprises(zoo, own, monkeypatch):
    own(right=RIGHT, spins=RIGHT, wrong=WRONG)

    def never_ends(rank):
        while True:
            dist.barrier()

    def spins(scenario, engine, **options):
        if scenario.name == "spins":
            return simulate(never_ends, 2, budget=Budget(steps=50))
        return run_scenario(scenario, engine, **options)

    monkeypatch.setattr("ddpsim.scenarios.cli.zoo_outcome.run_scenario", spins)
    status, out, _ = zoo("right spins")
    assert status == 3
    assert out[2] == "spins   TIME  ? pass; found budget, rank 0"
    assert out[-1] == "1 scenario as expected, 0 surprises, 1 unknown, TIME s"
    status, out, _ = zoo("right spins wrong")
    assert status == 1
    assert out[-1] == "1 scenario as expected, 1 surprise, 1 unknown, TIME s"


def test_a_file_of_ours_that_cannot_be_loaded_is_a_surprise(zoo, own):
    own(bad="=", good=RIGHT)
    status, out, err = zoo()
    assert (status, out[-1]) == (1, "1 scenario as expected, 0 surprises, TIME s")
    assert re.fullmatch(r"ddpsim: \S*bad\.toml.*\n", err)
    assert zoo("good")[::2] == (0, "")


def test_on_a_terminal_a_bar_goes_before_the_same_table(zoo, own, monkeypatch):
    own(one=RIGHT, two=WRONG)
    plain = zoo()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    status, out, err = zoo()
    assert (status, out) == plain[:2]
    assert "running" in err
    assert "100%" in err
