"""Scenarios as TOML files: a declared training, the steps of every rank, or another scenario under a schedule.

    summary = "one rank has a batch less than the others, and join keeps them going"
    world_size = 3
    network = { name = "mlp", hidden = [8, 8] }
    iterations = [2, 4, 3]                 # or a number, or { start = 2, step = 1, cycle = 3 }
    join = true

    [engine]                               # arguments of DistributedDataParallel
    bucket_cap_mb = 0.001

    [[exception]]                          # what all ranks, or `ranks`, do otherwise in some iterations
    iterations = [0]
    action = "accumulate"

    [expect]
    oracle = true                          # compare every rank's numbers with plain training

Instead of a training, `[[rank]]` has the steps of each rank, as in simulator/programs/json_form.py, and `[[group]]` the
groups; or `scenario` names another scenario. `schedule` has the answers at choice points, as they stand in a replay
token, and `runs_on` the engine. docs/scenarios.md lists every key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from ddpsim import Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.recorded_outcome import recorded_in
from ddpsim.scenarios.files.toml_table import Table, open_toml
from ddpsim.scenarios.files.toml_training import World, training_in
from ddpsim.scenarios.files.value_scenarios import of_program
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.training import oracle, trainer
from ddpsim.scenarios.training.reference import by_oracle
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.api import MOST_RANKS
from ddpsim.simulator.choices import answers_in
from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.programs.json_form import FORMAT, program_of
from ddpsim.simulator.programs.json_form import VERSION as JSON_VERSION


class _FaultKind(str, Enum):
    CRASH = "crash"
    DELAY = "delay"
    EARLY_RETURN = "early_return"


VERSION = 1
"""Of the format; a file that does not say its version is of this one."""

Find = Callable[[str], Scenario]
"""Finds the scenario of a name."""


def read_toml(path: Path, find: Find | None = None) -> Scenario:
    """The scenario in a file; `find` finds the other one that it may name.

    Raises UsageError, with file, line and key, for whatever is wrong with it.
    """
    table = open_toml(path)
    _check_version(table)
    scenario = _under_schedule(table, _body(table, find))
    recorded_in(table)  # only a replay compares with it, but it has to be in order
    table.done()
    if not scenario.summary:
        table.contradict("summary", "is missing, expected what goes wrong, or what is shown, in one line")
    return scenario


def _check_version(table: Table) -> None:
    version = table.raw("ddpsim")
    if version is not None and (type(version) is not int or version != VERSION):
        table.refuse("ddpsim", f"{VERSION}, the version that this ddpsim reads: use the ddpsim that saved the file")


def _body(table: Table, find: Find | None) -> Scenario:
    """What the file runs, and what it expects of that."""
    if "rank" in table and "scenario" in table:
        table.contradict("rank", "stands beside `scenario`, expected one thing to run: leave one of them out")
    if "rank" in table:
        return _program(table)
    return _other(table, find) if "scenario" in table else _training(table)


def _under_schedule(table: Table, scenario: Scenario) -> Scenario:
    """The scenario with the schedule and the engine that the file says."""
    engine = table.one_of("runs_on", Engine, scenario.engine)
    assert engine is not None
    text = table.text("schedule")
    try:
        answers = answers_in(text) if text else scenario.answers
    except ReplayError:
        table.refuse("schedule", 'answers as in a replay token, such as "0x12.1.2"')
    return replace(scenario, engine=engine, answers=answers)


def _training(table: Table) -> Scenario:
    """A declared training."""
    world = World(table.whole("world_size", 4, least=1, most=MOST_RANKS))
    training = training_in(table, world)
    expect = table.table("expect") or Table({}, ("expect",), table.source)
    has_oracle = expect.flag("oracle")
    expected, under_ddp = _expectations(expect, world)
    blames = bool(expected.ranks or (under_ddp and under_ddp.ranks))
    fixed = None if training.fits_every_world and not blames and not _names_ranks(table) else world.size
    if has_oracle:
        _check_oracle(expect, training, world)
        if not any(_is_compared(each) for each in (expected, under_ddp or expected)):
            expect.contradict(
                "oracle", "is true, but what fails is not compared, expected a pass or divergence.*: leave it out"
            )
    return Scenario(
        **_description(table),
        program=trainer.train,
        expected=expected,
        expected_under_ddp=under_ddp,
        world_size=world.size,
        min_world_size=fixed or min(2, world.size),
        max_world_size=fixed,
        args=(training,),
        faults=tuple(_fault(each, world) for each in table.tables("fault")),
        reference=partial(by_oracle, training) if has_oracle else None,
    )


def _program(table: Table) -> Scenario:
    """The steps of every rank. If the file does not say what is expected, it is what `check` finds."""
    ranks, groups = table.tables("rank"), table.raw("group")
    steps = [rank.raw("steps") for rank in ranks]
    for rank in ranks:
        rank.done()
    world = World(table.whole("world_size", len(ranks), least=1, most=MOST_RANKS))
    value = {
        "format": FORMAT,
        "version": JSON_VERSION,
        "world_size": world.size,
        "groups": groups or [],
        "ranks": steps,
    }
    try:
        scenario = of_program(program_of(value), name="")
    except UsageError as error:
        raise UsageError(f"{table.place('rank')} {error}") from None
    expect = table.table("expect")
    expected, under_ddp = (scenario.expected, None) if expect is None else _expectations(expect, world)
    return replace(scenario, **_description(table), expected=expected, expected_under_ddp=under_ddp)


def _other(table: Table, find: Find | None) -> Scenario:
    """Another scenario, by its name or file; a file is looked for beside this one."""
    name, size = table.text("scenario"), table.whole("world_size", 0, most=MOST_RANKS)
    if find is None or name.endswith(".toml"):
        table.refuse("scenario", "a name in `ddpsim list` or FILE.py:FUNCTION, in a file of your own")
    try:
        scenario = find(_beside(table.source.path, name)).with_world_size(size or None)
    except UsageError as error:
        raise UsageError(f"{table.place('scenario')} {error}") from None
    expect = table.table("expect")
    if expect is not None:
        expected, under_ddp = _expectations(expect, World(scenario.world_size))
        scenario = replace(scenario, expected=expected, expected_under_ddp=under_ddp)
    return replace(scenario, **_description(table))


def _beside(path: Path, name: str) -> str:
    """A name as it is; the path of a Python file from where this file is."""
    file, colon, function = name.rpartition(":")
    return f"{path.parent / file}{colon}{function}" if file.endswith(".py") else name


def _description(table: Table) -> dict[str, Any]:
    """What it is called, and what is told of it."""
    return {
        "name": table.text("name", table.source.path.stem.replace("_", "-")),
        "about": f"{table.text('summary')}\n\n{table.text('cause')}",
        "tags": table.texts("tags"),
        "reports": table.texts("reports"),
    }


def _expectations(expect: Table, world: World) -> tuple[Expectation, Expectation | None]:
    """What is expected, and what of our engine if that is something else."""
    expected = _expectation(expect, world)
    own = expect.table("ddp")
    under_ddp = None if own is None else _expectation(own, world)
    for each in (expect, own):
        if each is not None:
            each.done()
    return expected, under_ddp


def _fault(table: Table, world: World) -> Fault:
    kind = table.one_of("kind", _FaultKind)
    if kind is None:
        table.contradict("kind", f"is missing, expected one of {', '.join(each.value for each in _FaultKind)}")
    rank, call = table.whole("rank", 0), table.whole("before_call", 0)
    if rank >= world.size:
        table.contradict("rank", f"is {rank}, expected a rank below world_size = {world.size}")
    fault: Fault
    if kind is _FaultKind.CRASH:
        fault = Crash(rank, call, table.text("message", "injected crash"))
    elif kind is _FaultKind.DELAY:
        fault = Delay(rank, call, table.number("seconds", 1.0))
    else:
        fault = EarlyReturn(rank, call)
    table.done()
    return fault


def _expectation(table: Table, world: World) -> Expectation:
    """What is expected. Without a word: a pass without findings."""
    code = table.one_of("finding", Code)
    verdict = table.one_of("verdict", Verdict, code.verdict if code else Verdict.PASS)
    assert verdict is not None
    if code is not None and code.verdict is not verdict:
        table.contradict(
            "verdict", f"is {verdict.value!r}, but {code} means {code.verdict.value!r}: leave one of them out"
        )
    ranks = world.ranks(table)
    if ranks is None and code is not None:
        table.contradict("finding", f"is {code.value!r} without ranks, expected who is to blame, such as ranks = [1]")
    if ranks and code is None:
        table.contradict("ranks", "says who is to blame, expected a finding, too")
    return Expectation(verdict, code, ranks or (), is_clean=code is None and verdict is Verdict.PASS)


def _names_ranks(table: Table) -> bool:
    """True if anything but a number for each rank is said of particular ranks."""
    return any("rank" in each or "ranks" in each for key in ("exception", "fault") for each in table.tables(key))


def _check_oracle(expect: Table, training: Training, world: World) -> None:
    try:
        oracle.check_has_meaning(training, world.size)
    except UsageError as error:
        expect.contradict("oracle", f"is true, but {error}")


def _is_compared(expected: Expectation) -> bool:
    """True if a run that comes out as expected is compared with the oracle."""
    diverges = expected.code is not None and expected.code.value.startswith("divergence.")
    return expected.verdict is Verdict.PASS or diverges
