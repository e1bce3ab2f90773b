"""What a TOML file says of its training: networks, batches, the engine's arguments, and what ranks do otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from inspect import signature
from math import prod
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim import UsageError
from ddpsim.scenarios.files.toml_table import Table, is_whole
from ddpsim.scenarios.models import Network, OptionError, outline
from ddpsim.scenarios.names import nearest
from ddpsim.scenarios.training.training import (
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


class _Dtype(str, Enum):
    FLOAT32 = "float32"
    FLOAT64 = "float64"


_UNSET = ("broadcast_buffers", "bucket_cap_mb", "forward_sync_buffers")
"""Arguments of DistributedDataParallel whose default is None; the others that a file can say have a flag or number."""


_MOST = 100_000
"""No rank has more iterations, and no batch more rows: it would be a mistake, and take hours."""
_MOST_ITERATIONS = 1_000_000
"""All ranks together have no more."""
_MOST_NUMBERS = 100_000_000
"""No batch has more: it would fill the memory, once for each rank."""
_LARGEST_SEED = 10**12
"""The seeds of all batches, which are drawn from it, stay below 2**63."""


@dataclass(frozen=True, slots=True)
class World:
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
        if not all(is_whole(each, least, _MOST) for each in value):
            table.refuse(key, f"whole numbers from {least} to {_MOST}")
        if len(value) != self.size:
            table.contradict(
                key, f"has {len(value)} numbers, expected {self.size}, one for each rank of world_size = {self.size}"
            )
        return tuple(value)


def training_in(table: Table, world: World) -> Training:
    """The training that a file declares. Raises UsageError for what is wrong with it."""
    dtype = table.one_of("dtype", _Dtype, _Dtype.FLOAT32)
    assert dtype is not None
    choices, networks = zip(*(_network(each, table) for each in _network_tables(table)), strict=True)
    training = Training(
        choices,
        _iterations(table, world),
        _rows(table, world),
        _engine_options(table.table("engine")),
        _join(table),
        _optimizer(table),
        table.one_of("communication_hook", CommunicationHook),
        table.flag("average_buffers"),
        table.flag("reduce_loss"),
        seed=table.whole("seed", 0, most=_LARGEST_SEED),
        dtype=getattr(torch, dtype.value),
    )
    _check_sizes(table, training, networks, world)
    exceptions = [_exception(each, training, networks, world) for each in table.tables("exception")]
    return replace(training, exceptions=tuple(exceptions))


def _network_tables(table: Table) -> list[Table | str]:
    value = table.raw("network")
    if value is None or isinstance(value, str):
        return ["linear" if value is None else value]
    if not value:
        table.refuse("network", "a name, a table of name and options, or several of them")
    return list(table.tables("network"))


def _network(choice: Table | str, file: Table) -> tuple[NetworkChoice, Network]:
    """What is chosen, and its outline."""
    if isinstance(choice, str):
        name, options, table, key = choice, {}, file, "network"
    else:
        name, table, key = choice.text("name", "linear"), choice, "name"
        options = {option: _option_value(choice.raw(option)) for option in choice if option != "name"}
    try:
        return NetworkChoice(name, options), outline(name, options)
    except OptionError as error:
        table.contradict(error.option, error.problem)
    except UsageError as error:
        raise UsageError(f"{table.place(key)} {error}") from error


def _check_sizes(table: Table, training: Training, networks: Sequence[Network], world: World) -> None:
    counts = [training.count(rank) for rank in range(world.size)]
    if max(counts) > _MOST or sum(counts) > _MOST_ITERATIONS:
        table.contradict(
            "iterations",
            f"come to {max(counts)} on a rank and {sum(counts)} in all, "
            f"expected {_MOST} and {_MOST_ITERATIONS} at most",
        )
    rows = training.rows if isinstance(training.rows, int) else max(training.rows)
    largest = max(prod(network.row) for network in networks)
    if rows * largest > _MOST_NUMBERS:
        table.contradict(
            "rows", f"are up to {rows} of {largest} numbers, expected {_MOST_NUMBERS} numbers in a batch at most"
        )
    if training.optimizer.name is not OptimizerName.SGD and any(network.sparse for network in networks):
        name = training.optimizer.name.value
        table.contradict("optimizer", f"is {name}, which takes no sparse gradients as the network has: take sgd")


def _option_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _iterations(table: Table, world: World) -> tuple[int, ...] | Rule:
    value = table.raw("iterations")
    if value is None:
        return Rule()
    if is_whole(value, 0, _MOST):
        return Rule(value)
    if isinstance(value, list):
        return world.by_rank(table, "iterations", value, 0)
    rule = table.table("iterations") if isinstance(value, dict) else None
    if rule is None:
        table.refuse("iterations", f"a whole number, one for each rank, or {{ start, step, cycle }}, up to {_MOST}")
    step = rule.raw("step")
    if step is not None and not is_whole(step, -_MOST, _MOST):
        rule.refuse("step", f"a whole number from {-_MOST} to {_MOST}")
    cycle = None if rule.raw("cycle") is None else rule.whole("cycle", 1, least=1)
    found = Rule(rule.whole("start", 3, most=_MOST), step or 0, cycle)
    rule.done()
    return found


def _rows(table: Table, world: World) -> tuple[int, ...] | int:
    value = table.raw("rows")
    if isinstance(value, list):
        return world.by_rank(table, "rows", value, 1)
    return table.whole("rows", 4, least=1, most=_MOST)


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
        return table.number(key, 0.0, below=1e5)
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
        choice.number("momentum", 0.0, below=1.0),
        choice.flag("sharded"),
    )
    if found.momentum and found.name is not OptimizerName.SGD:
        choice.contradict("momentum", f"is {found.momentum}, but {found.name.value} has none: leave it out, or use sgd")
    choice.done()
    return found


def _exception(table: Table, training: Training, networks: Sequence[Network], world: World) -> Exceptional:
    found = Exceptional(
        world.ranks(table),
        table.wholes("iterations"),
        table.one_of("action", Action),
        None if table.raw("uses") is None else _uses(table, networks),
    )
    table.done()
    for key, value in (("ranks", found.ranks), ("iterations", found.iterations)):
        if value == ():
            table.contradict(key, "is [], expected one or more: leave it out for all")
    ranks = range(world.size) if found.ranks is None else found.ranks
    longest = max(training.count(rank) for rank in ranks)
    if any(iteration >= longest for iteration in found.iterations or ()):
        nobody = "no rank" if found.ranks is None else "none of its ranks"
        table.contradict(
            "iterations", f"is {list(found.iterations or ())}, but {nobody} has more than {longest}, from 0"
        )
    if found.action is None and found.uses is None:
        table.contradict("action", "is missing, expected what is done otherwise, or which branches a batch uses")
    return found


def _uses(table: Table, networks: Sequence[Network]) -> tuple[str, ...]:
    uses = table.texts("uses")
    branches = [branch for network in networks for branch in network.branches]
    for branch in uses:
        if branch not in branches:
            has = f"one of {', '.join(branches)}" if branches else "none: this network has no branches"
            table.contradict("uses", f"has {branch!r}, expected {has}. {nearest(branch, branches)}".rstrip(". "))
    for network in networks:
        try:
            network.taken([branch for branch in uses if branch in network.branches])
        except UsageError as error:
            table.contradict("uses", str(error).removeprefix("uses "))
    return uses
