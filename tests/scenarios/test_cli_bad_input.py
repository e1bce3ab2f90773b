"""What the commands cannot work with: one line that says what was found, what was expected and what to do; status 2."""

import re
from pathlib import Path

import pytest

from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.policies.named import EXPLORING, RUNNING

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "s1:0:e2f90957"
ENGINES = "expected one of torch, ddp, both: give one of these names"
TIME = "expected a number above 0: say how long to fuzz"
RUNNING_ONES = f"expected one of {', '.join(RUNNING)}: ..."

BAD = {
    "runn": "No such command 'runn'...; expected one of list, run, replay, debug, ...; see `ddpsim --help`",
    "--verbose": "No such option: --verbose (Possible options: --version); see `ddpsim --help`",
    "list all": "path is 'all', which does not exist: correct the path",
    "list README.md": "path is 'README.md', expected a folder, or a file that ends in .py or .toml: correct it",
    "list examples": "examples has no scenario, expected @scenario functions or TOML files: ...",
    "list --tag cycel": "tag is 'cycel', expected one of ..., cycle, ...: did you mean 'cycle'?",
    "list --tag xyz scenarios/join": "tag is 'xyz', expected one of ..., join, ...: give one of these",
    "list --tag cycle --tag join": "tags are cycle, join, but no scenario has all of them: leave ...",
    "run": "Missing argument 'NAME'; see `ddpsim run --help`",
    "run send-send --sede 3": "No such option: --sede...; see `ddpsim run --help`",
    "run send-send --world-size": "Option '--world-size' requires an argument; see `ddpsim... --help`",
    "run send-send --world-size four": "Invalid value for '--world-size' ...; see `ddpsim run --help`",
    "run send-send --seed 1.5": "Invalid value for '--seed': ...; see `ddpsim run --help`",
    "run examples/hang.py:train --world-size 0": (
        "world size is 0, examples/hang.py:train expects 1 or more: give it more ranks"
    ),
    "run send-sent": "scenario is 'send-sent', expected ...: did you mean 'send-send'?",
    "run send-send --engine tensor": f"engine is 'tensor', {ENGINES}",
    "run send-send --policy fair": f"policy is 'fair', {RUNNING_ONES}",
    "replay send-send": "send-send has no schedule of its own: give the TOKEN from its report",
    f"replay send-send --engine both {TOKEN}": "engine is 'both', expected 'torch' or 'ddp': give one of these",
    "replay send-send hello": "replay token 'hello' is not valid, expected something like ...: copy ...",
    "zoo --policy fair": f"policy is 'fair', {RUNNING_ONES}",
    "zoo send-send --tag join": "tag is 'join', expected one of cycle, point-to-point: give one of these",
    "bench --rounds 0": "rounds is 0, expected 1 to 10000: correct it",
    "bench --transport processes": (
        "transport is 'processes', but bench measures only the simulation: use 'memory' or 'gloo'"
    ),
    "bench --transport carrier": (
        "transport is 'carrier', expected 'memory', 'gloo', 'processes': give one of these names"
    ),
    "bench --engine three": f"engine is 'three', {ENGINES}",
    "bench send-sent": "scenario is 'send-sent', expected ...",
    "bench join-baseline --world-size 0": "world size is 0, join-baseline expects ...",
    "explore uneven-linear --executions 0": "Budget(executions=0), expected more than 0: correct it",
    "explore uneven-linear --seconds 0": "Budget(seconds=0.0), expected more than 0: correct it",
    "explore uneven-linear --policy best": f"policy is 'best', expected one of {', '.join(EXPLORING)}...",
    "explore uneven-linear --depth 2": "depth is 2, which only policy 'pct' has, not 'dpor'...",
    "explore uneven-linear --transport processes": ("transport is 'processes', but only a simulation has schedules..."),
    "explore uneven-linear --world-size 1": "world size is 1...",
    **{f"fuzz --seconds {text}": f"seconds is {text}, {TIME}" for text in ("0", "-1", "nan", "inf")},
    "fuzz examples/hang.py:train --seconds 0": f"seconds is 0, {TIME}",
    "fuzz --executions 0": "executions is 0, expected 1 or more: say how many runs to make",
    "fuzz --seed -1": "seed is -1, expected 0 or more: ...",
    "fuzz --jobs 0": "jobs is 0, expected 1 or more: say how many processes to use",
    "fuzz --backend spark": "backend is 'spark', expected one of loky, dask, ray...",
    "fuzz --backend dask": "backend is 'dask' without a cluster, expected the address of one: give --cluster...",
    "fuzz --cluster host:1": (
        "cluster is 'host:1', but backend 'loky' runs on this machine: leave it out, or take ..."
    ),
    "fuzz --engine best": f"engine is 'best', {ENGINES}",
    "fuzz send-send --generate": "found NAME 'send-send' and --generate, expected only one...",
    "fuzz send-send --documented": "found NAME 'send-send' and --documented...",
    "fuzz --world-size 3": "found --world-size without NAME...",
    "fuzz examples/hang.py:train --world-size 0": "world size is 0...",
    "fuzz no-such-scenario": "scenario is 'no-such-scenario', expected a name in `ddpsim list`...",
    "fuzz --corpus README.md": "corpus 'README.md' is not a folder: give a folder or a new name...",
    "shrink join-baseline": (
        "the verdict of join-baseline on 4 ranks under this schedule is pass, expected a failure to shrink: give a "
        "schedule under which it fails"
    ),
    "shrink send-send s1:0:00000000 --policy random": (
        "policy is 'random', but a replay token already has a schedule: leave one of them out"
    ),
    "shrink send-send -o least.txt": (
        "output is 'least.txt', expected a name that ends in .toml, so that `ddpsim run` reads it"
    ),
    "shrink send-send --seconds 0": "Budget(seconds=0.0), expected more than 0: correct it",
    "shrink send-send --world-size 1": "world size is 1, send-send expects 2 or more: give it more ranks",
}
"""By the words behind `ddpsim`; "..." stands for whatever else is said there."""


@pytest.mark.parametrize(("line", "message"), BAD.items())
def test_it_is_one_line_and_2_and_leaves_nothing(console, monkeypatch, line, message):
    monkeypatch.chdir(ROOT)
    status, out, err = console(*line.split())
    assert (status, out) == (ExitStatus.USAGE_ERROR, "")
    assert re.fullmatch("ddpsim: " + ".*".join(map(re.escape, message.split("..."))) + "\n", err), err
    assert not [*ROOT.glob("*-shrunk.toml"), *ROOT.glob("least.*")]
