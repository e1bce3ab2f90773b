"""Read the training in a TOML file: networks, batches, arguments of the engine, and exceptional iterations of ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from math import prod
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, structs
from torch.nn.parallel import DistributedDataParallel

from ddpsim import UsageError
from ddpsim.scenarios.files.toml_forms import ALIKE, NETWORKS, TrainingForm
from ddpsim.scenarios.files.toml_source import TomlFile
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.training.models import Network, NetworkOptionError, make_meta_network
from ddpsim.scenarios.training.parallel_limits import find_problems
from ddpsim.scenarios.training.training import (
    MOST,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
    Whole,
)

_MOST_ITERATIONS = 1_000_000
"""The largest number of iterations in a training, of all ranks together."""
_MOST_NUMBERS = 100_000_000
"""The largest number of numbers in a batch, because every rank keeps its batch in memory."""
_ARGUMENTS_WITHOUT_DEFAULT = ("broadcast_buffers", "bucket_cap_mb", "forward_sync_buffers")
"""The arguments of DistributedDataParallel whose default is None. All other arguments in a file are booleans or
numbers."""


def read_training(file: TomlFile, form: TrainingForm, world_size: int) -> Training:
    """Return the training that a file declares. Raises UsageError for values that do not fit together."""
    tables = list(tables_with_paths(form.network, "network"))
    if not tables:
        file.reject_value("network", expected=NETWORKS)
    choices, networks = zip(*(_read_network(file, path, table) for path, table in tables), strict=True)
    for key, value in (("iterations", form.iterations), ("rows", form.rows)):
        if isinstance(value, tuple) and len(value) != world_size:
            expected = f"{world_size}, one for each rank of world_size = {world_size}"
            file.reject_key(key, says=f"has {len(value)} numbers, expected {expected}")
    join, optimizer = form.join, form.optimizer
    training = Training(
        choices,
        IterationRule(form.iterations) if isinstance(form.iterations, int) else form.iterations,
        engine_options=_read_engine_options(file),
        join=join if isinstance(join, JoinOptions) else JoinOptions() if join else None,
        optimizer=optimizer if isinstance(optimizer, OptimizerChoice) else OptimizerChoice(optimizer),
        dtype=getattr(torch, form.dtype.value),
        mixed_precision=None if form.mixed_precision is None else getattr(torch, form.mixed_precision.value),
        **{name: getattr(form, name) for name in ALIKE},
    )
    _check_sizes(file, training, networks, world_size)
    exceptions = list(tables_with_paths(form.exception, "exception"))
    for path, each in exceptions:
        _check_exception(file, path, each, training, networks, world_size)
    training = replace(training, exceptions=tuple(each for _, each in exceptions))
    for path, says in find_problems(training, networks, world_size):
        file.reject_key(*_path_in_file(file, path), says=says)
    return training


def tables_with_paths(tables: Any, key: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each table of an array of tables, with its path. A single table counts as an array of one table."""
    if isinstance(tables, tuple):
        yield from (((key, index), each) for index, each in enumerate(tables))
    else:
        yield (key,), tables


def _path_in_file(file: TomlFile, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the path of a key as the file has it: without an index if the file has one table instead of an array."""
    is_table = isinstance(file.values.get(str(path[0])), dict)
    return tuple(each for each in path if not (is_table and isinstance(each, int)))


def check_ranks_exist(
    file: TomlFile, path: tuple[str | int, ...], ranks: Sequence[int] | None, world_size: int
) -> None:
    """Raise UsageError for a rank that does not exist."""
    if any(rank >= world_size for rank in ranks or ()):
        file.reject_key(*path, says=f"is {list(ranks or ())}, expected ranks below world_size = {world_size}")


def _read_network(
    file: TomlFile, path: tuple[str | int, ...], table: str | dict[str, Any]
) -> tuple[NetworkChoice, Network]:
    """Return the network that a table in the file describes, and the network's outline (shapes, parameters and
    branches)."""
    given = {"name": table} if isinstance(table, str) else table
    key = path if isinstance(table, str) else (*path, "name")
    options = {option: tuple(value) if isinstance(value, list) else value for option, value in given.items()}
    name = options.pop("name", "linear")
    if not isinstance(name, str):
        file.reject_value(*key, expected="a string")
    try:
        return NetworkChoice(name, options), make_meta_network(name, options)
    except NetworkOptionError as error:
        file.reject_key(*path, error.option, says=error.problem)
    except UsageError as error:
        raise UsageError(f"{file.location(*key)} {error}") from error


def _read_engine_options(file: TomlFile) -> dict[str, object]:
    """Return the arguments of DistributedDataParallel that the file gives."""
    given = file.values.get("engine", {})
    options = structs.asdict(file.read_form(_make_engine_form(), "engine")) if given else {}
    return {key: value for key, value in options.items() if key in given}


@cache
def _make_engine_form() -> type[msgspec.Struct]:
    """Return a form (class) whose fields are the arguments that a file can set: booleans and numbers."""
    kinds: dict[type, Any] = {int: Whole, bool: bool, type(None): bool}
    arguments = signature(DistributedDataParallel.__init__).parameters.items()
    known = {
        key: kinds[type(each.default)]
        for key, each in arguments
        if key in _ARGUMENTS_WITHOUT_DEFAULT or isinstance(each.default, int)
    }
    known["bucket_cap_mb"] = Annotated[float, Meta(ge=0, lt=1e5)]
    fields = [(key, kind, None) for key, kind in known.items()]
    return msgspec.defstruct("Engine", fields, frozen=True, forbid_unknown_fields=True)


def _check_sizes(file: TomlFile, training: Training, networks: Sequence[Network], world_size: int) -> None:
    """Raise UsageError for a training that is too large, or whose optimizer does not fit its networks."""
    counts = [training.iteration_count(rank) for rank in range(world_size)]
    if max(counts) > MOST or sum(counts) > _MOST_ITERATIONS:
        expected = f"expected {MOST} and {_MOST_ITERATIONS} at most: use fewer"
        file.reject_key("iterations", says=f"are {max(counts)} on a rank and {sum(counts)} in all, {expected}")
    rows = training.rows if isinstance(training.rows, int) else max(training.rows)
    largest = max(prod(network.row) for network in networks)
    if rows * largest > _MOST_NUMBERS:
        expected = f"expected {_MOST_NUMBERS} numbers in a batch at most: use fewer"
        file.reject_key("rows", says=f"are up to {rows} of {largest} numbers, {expected}")
    name, momentum = training.optimizer.name, training.optimizer.momentum
    if name is not OptimizerName.SGD and any(network.sparse for network in networks):
        says = f"is {name.value}, which takes no sparse gradients, but the network has such: use sgd"
        file.reject_key("optimizer", says=says)
    if name is not OptimizerName.SGD and momentum:
        says = f"is {momentum}, but {name.value} has none: leave it out, or use sgd"
        file.reject_key("optimizer", "momentum", says=says)


def _check_exception(
    file: TomlFile,
    path: tuple[str | int, ...],
    found: ExceptionalIterations,
    training: Training,
    networks: Sequence[Network],
    world_size: int,
) -> None:
    """Raise UsageError for a rule on exceptional iterations that applies to no rank or iteration, or changes
    nothing."""
    check_ranks_exist(file, (*path, "ranks"), found.ranks, world_size)
    for key, value in (("ranks", found.ranks), ("iterations", found.iterations)):
        if value == ():
            file.reject_key(*path, key, says="is [], expected one or more: leave it out to mean all")
    ranks = range(world_size) if found.ranks is None else found.ranks
    longest = max(training.iteration_count(rank) for rank in ranks)
    if any(iteration >= longest for iteration in found.iterations or ()):
        nobody = "no rank" if found.ranks is None else "none of its ranks"
        says = f"is {list(found.iterations or ())}, but {nobody} has more than {longest}, counted from 0: correct it"
        file.reject_key(*path, "iterations", says=says)
    if found.action is None and found.uses is None:
        says = "is missing, expected an action, or `uses` with the branches that a batch uses: add one"
        file.reject_key(*path, "action", says=says)
    if problem := _problem_of_uses(found.uses or (), networks):
        file.reject_key(*path, "uses", says=problem)


def _problem_of_uses(uses: Sequence[str], networks: Sequence[Network]) -> str:
    branches = [branch for network in networks for branch in network.branches]
    for branch in uses:
        if branch not in branches:
            has = f"one of {', '.join(branches)}" if branches else "none: this network has no branches"
            return f"has {branch!r}, expected {has}. {suggest_nearest_name(branch, branches)}".rstrip(". ")
    for network in networks:
        try:
            network.branches_taken([branch for branch in uses if branch in network.branches])
        except UsageError as error:
            return str(error).removeprefix("uses ")
    return ""
