"""Declared scenarios: a TOML file as a Scenario.

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

docs/scenarios.md lists every key.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path

from scenarios import oracle, trainer
from scenarios.comparison import by_oracle
from scenarios.model import Expectation, Scenario
from scenarios.toml_table import Table, open_toml
from scenarios.toml_training import World, training_in
from scenarios.training import Training
from simulator import Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from simulator.api import MOST_RANKS
from simulator.faults import Fault


class _FaultKind(str, Enum):
    CRASH = "crash"
    DELAY = "delay"
    EARLY_RETURN = "early_return"


def read_toml(path: Path) -> Scenario:
    """The scenario in a file. Raises UsageError, with file, line and key, for whatever is wrong with it."""
    table = open_toml(path)
    world = World(table.whole("world_size", 4, least=1, most=MOST_RANKS))
    training = training_in(table, world)
    summary, cause = table.text("summary"), table.text("cause")
    expect = table.table("expect") or Table({}, ("expect",), table.source)
    has_oracle = expect.flag("oracle")
    expected = _expectation(expect, world)
    own = expect.table("ddp")
    under_ddp = None if own is None else _expectation(own, world)
    for each in (expect, own):
        if each is not None:
            each.done()
    blames = bool(expected.ranks or (under_ddp and under_ddp.ranks))
    fixed = None if training.fits_every_world and not blames and not _names_ranks(table) else world.size
    scenario = Scenario(
        table.text("name", path.stem.replace("_", "-")),
        f"{summary}\n\n{cause}",
        trainer.train,
        expected,
        under_ddp,
        world.size,
        fixed or min(2, world.size),
        fixed,
        args=(training,),
        faults=tuple(_fault(each, world) for each in table.tables("fault")),
        tags=table.texts("tags"),
        reports=table.texts("reports"),
        reference=partial(by_oracle, training) if has_oracle else None,
    )
    table.done()
    if not summary:
        table.contradict("summary", "is missing, expected what goes wrong, or what is shown, in one line")
    if has_oracle:
        _check_oracle(expect, training, world)
        if not any(_is_compared(each) for each in (expected, under_ddp or expected)):
            expect.contradict(
                "oracle", "is true, but what fails is not compared, expected a pass or divergence.*: leave it out"
            )
    return scenario


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
