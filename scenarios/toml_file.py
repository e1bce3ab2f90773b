"""Declared scenarios: a TOML file as a Scenario.

    summary = "one rank has a batch less than the others, and join keeps them going"
    world_size = 3
    network = { name = "mlp", depth = 2 }
    iterations = [2, 4, 3]                 # or a number, or { start = 2, step = 1, cycle = 3 }
    join = true

    [engine]                               # arguments of DistributedDataParallel
    bucket_cap_mb = 0.001

    [[exception]]                          # what some ranks do otherwise, in some iterations
    ranks = [1]
    iterations = [0]
    action = "accumulate"

    [expect]
    oracle = true                          # compare every rank's numbers with plain training

docs/scenarios.md lists every key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scenarios import oracle, trainer
from scenarios.model import Expectation, Scenario
from scenarios.models import make
from scenarios.names import nearest
from scenarios.reference import by_oracle
from scenarios.toml_table import Table, is_whole, open_toml
from scenarios.training import (
    Action,
    CommunicationHook,
    Exceptional,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Rule,
    Training,
)
from simulator import Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from simulator.faults import Fault


class _Dtype(str, Enum):
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class _FaultKind(str, Enum):
    CRASH = "crash"
    DELAY = "delay"
    EARLY_RETURN = "early_return"


_UNSET = ("broadcast_buffers", "bucket_cap_mb", "forward_sync_buffers")
"""Arguments of DistributedDataParallel whose default is None; the others that a file can say have a flag or number."""


@dataclass(frozen=True, slots=True)
class _World:
    """What the numbers of ranks in a file are checked against."""

    size: int

    def ranks(self, table: Table, key: str = "ranks") -> tuple[int, ...] | None:
        """An array of ranks of this world."""
        found = table.wholes(key)
        if any(rank >= self.size for rank in found or ()):
            table.contradict(key, f"is {list(found or ())}, expected ranks below world_size = {self.size}")
        return found

    def by_rank(self, table: Table, key: str, value: list[Any], least: int) -> tuple[int, ...]:
        """A whole number for each rank."""
        if not all(is_whole(each, least) for each in value):
            table.refuse(key, f"whole numbers from {least} on")
        if len(value) != self.size:
            table.contradict(
                key, f"has {len(value)} numbers, expected {self.size}, one for each rank of world_size = {self.size}"
            )
        return tuple(value)


def read_toml(path: Path) -> Scenario:
    """The scenario in a file. Raises UsageError, with file, line and key, for whatever is wrong with it."""
    table = open_toml(path)
    world = _World(table.whole("world_size", 4, least=1))
    training = _training(table, world)
    summary, cause = table.text("summary"), table.text("cause")
    expect = table.table("expect") or Table({}, ("expect",), table.source)
    has_oracle = expect.flag("oracle")
    expected = _expectation(expect, world)
    own = expect.table("ddp")
    under_ddp = None if own is None else _expectation(own, world)
    for each in (expect, own):
        if each is not None:
            each.done()
    fixed = None if training.fits_every_world and not _names_ranks(table) else world.size
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
    return scenario


def _training(table: Table, world: _World) -> Training:
    dtype = table.one_of("dtype", _Dtype, _Dtype.FLOAT32)
    assert dtype is not None
    networks = tuple(_network(each, table) for each in _network_tables(table))
    training = Training(
        networks,
        _iterations(table, world),
        _rows(table, world),
        _engine_options(table.table("engine")),
        _join(table),
        _optimizer(table),
        table.one_of("communication_hook", CommunicationHook),
        table.flag("average_buffers"),
        table.flag("reduce_loss"),
        seed=table.whole("seed", 0),
        dtype=getattr(torch, dtype.value),
    )
    exceptions = [_exception(each, training, world) for each in table.tables("exception")]
    return replace(training, exceptions=tuple(exceptions))


def _network_tables(table: Table) -> list[Table | str]:
    value = table.raw("network")
    if value is None or isinstance(value, str):
        return [value or "linear"]
    return list(table.tables("network"))


def _network(choice: Table | str, file: Table) -> NetworkChoice:
    if isinstance(choice, str):
        name, options, table, key = choice, {}, file, "network"
    else:
        name, table, key = choice.text("name", "linear"), choice, "name"
        options = {option: _option_value(choice.raw(option)) for option in choice if option != "name"}
    try:
        make(name, options)
    except UsageError as error:
        raise UsageError(f"{table.place(key)} {error}") from error
    return NetworkChoice(name, options)


def _option_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _iterations(table: Table, world: _World) -> tuple[int, ...] | Rule:
    value = table.raw("iterations")
    if value is None:
        return Rule()
    if is_whole(value, 0):
        return Rule(value)
    if isinstance(value, list):
        return world.by_rank(table, "iterations", value, 0)
    rule = table.table("iterations") if isinstance(value, dict) else None
    if rule is None:
        table.refuse("iterations", "a whole number, one for each rank, or { start, step, cycle }")
    step = rule.raw("step")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool)):
        rule.refuse("step", "a whole number")
    found = Rule(rule.whole("start", 3), step or 0, rule.whole("cycle", 0) or None)
    rule.done()
    return found


def _rows(table: Table, world: _World) -> tuple[int, ...] | int:
    value = table.raw("rows")
    if isinstance(value, list):
        return world.by_rank(table, "rows", value, 1)
    return table.whole("rows", 4, least=1)


def _engine_options(table: Table | None) -> dict[str, object]:
    """The constructor's arguments that a file can say: those that are true, false, or a number."""
    if table is None:
        return {}
    arguments = signature(DistributedDataParallel.__init__).parameters.items()
    known = {key: each.default for key, each in arguments if key in _UNSET or isinstance(each.default, int)}
    found = {key: _engine_option(table, key, default) for key, default in known.items()}
    table.done()
    return {key: value for key, value in found.items() if key in table}


def _engine_option(table: Table, key: str, default: object) -> object:
    if key == "bucket_cap_mb":
        return table.number(key, 0.0)
    return table.whole(key, 0) if type(default) is int else table.flag(key)


def _join(table: Table) -> JoinTerms | None:
    value = table.raw("join")
    if value is None or isinstance(value, bool):
        return JoinTerms() if value else None
    terms = table.table("join")
    assert terms is not None
    found = JoinTerms(terms.flag("divide_by_initial_world_size", True), terms.flag("throw_on_early_termination"))
    terms.done()
    return found


def _optimizer(table: Table) -> OptimizerChoice:
    if isinstance(table.raw("optimizer"), str):
        return OptimizerChoice(table.one_of("optimizer", OptimizerName) or OptimizerName.SGD)
    choice = table.table("optimizer")
    if choice is None:
        return OptimizerChoice()
    found = OptimizerChoice(
        choice.one_of("name", OptimizerName) or OptimizerName.SGD,
        choice.number("learning_rate", 0.05),
        choice.number("momentum", 0.0),
        choice.flag("sharded"),
    )
    if found.momentum and found.name is not OptimizerName.SGD:
        choice.contradict("momentum", f"is {found.momentum}, but {found.name.value} has none: leave it out, or use sgd")
    choice.done()
    return found


def _exception(table: Table, training: Training, world: _World) -> Exceptional:
    found = Exceptional(
        world.ranks(table), table.wholes("iterations"), table.one_of("action", Action), _uses(table, training)
    )
    longest = max(training.count(rank) for rank in range(world.size))
    if any(iteration >= longest for iteration in found.iterations or ()):
        table.contradict(
            "iterations", f"is {list(found.iterations or ())}, but no rank has more than {longest}, from 0"
        )
    table.done()
    return found


def _uses(table: Table, training: Training) -> tuple[str, ...] | None:
    if "uses" not in table:
        return None
    uses = table.texts("uses")
    branches = [branch for index in range(len(training.networks)) for branch in training.network(index).branches]
    for branch in uses:
        if branch not in branches:
            has = f"one of {', '.join(branches)}" if branches else "none: this network has no branches"
            table.contradict("uses", f"has {branch!r}, expected {has}. {nearest(branch, branches)}".rstrip(". "))
    return uses


def _fault(table: Table, world: _World) -> Fault:
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


def _expectation(table: Table, world: _World) -> Expectation:
    """What is expected. Without a word: a pass without findings."""
    code = table.one_of("finding", Code)
    verdict = table.one_of("verdict", Verdict, code.verdict if code else Verdict.PASS)
    assert verdict is not None
    if code is not None and code.verdict is not verdict:
        table.contradict(
            "verdict", f"is {verdict.value!r}, but {code} means {code.verdict.value!r}: leave one of them out"
        )
    ranks = world.ranks(table) or ()
    if ranks and code is None:
        table.contradict("ranks", "says who is to blame, expected a finding, too")
    return Expectation(verdict, code, ranks, is_clean=code is None and verdict is Verdict.PASS)


def _names_ranks(table: Table) -> bool:
    """True if anything but a number for each rank is said of particular ranks."""
    return any("rank" in each or "ranks" in each for key in ("exception", "fault") for each in table.tables(key))


def _check_oracle(expect: Table, training: Training, world: _World) -> None:
    try:
        oracle.check_has_meaning(training, world.size)
    except UsageError as error:
        expect.contradict("oracle", f"is true, but {error}")
