"""Read scenarios from TOML files.

A file has a declared training, the steps of each rank, or the name of another scenario and a schedule. `toml_forms.py`
has a form (a class with one field per key) for each of the three, and docs/scenarios.md lists every key. This module
reads a file into a form; `saving.py` writes a form into a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, structs
from torch.nn.parallel import DistributedDataParallel

from ddpsim import UsageError, Verdict
from ddpsim.scenarios.files import toml_forms as forms
from ddpsim.scenarios.files.program_line import replace_path_in_name
from ddpsim.scenarios.files.toml_forms import ALIKE, NETWORKS, TrainingForm
from ddpsim.scenarios.files.toml_source import TomlFile, read_toml_file
from ddpsim.scenarios.files.value_scenarios import rank_function_of_training, scenario_of_program
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.training import oracle
from ddpsim.scenarios.training.models import Network, NetworkOptionError, make_meta_network
from ddpsim.scenarios.training.parallel_limits import find_problems
from ddpsim.scenarios.training.reference import reference_by_oracle
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
from ddpsim.simulator.choices import parse_choices
from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.programs.program_json import FORMAT, program_from_value
from ddpsim.simulator.programs.program_json import VERSION as JSON_VERSION
from ddpsim.simulator.run_options import NOTHING

_MOST_ITERATIONS = 1_000_000
"""The largest number of iterations in a training, of all ranks together."""
_MOST_NUMBERS = 100_000_000
"""The largest number of numbers in a batch, because every rank keeps its batch in memory."""
_ARGUMENTS_WITHOUT_DEFAULT = ("broadcast_buffers", "bucket_cap_mb", "forward_sync_buffers")
"""The arguments of DistributedDataParallel whose default is None. All others are booleans or numbers."""


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
    """Return the network that a table describes, and its outline (shapes, parameters and branches)."""
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
    """Raise UsageError for a rule on exceptional iterations that applies to nothing, or changes nothing."""
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


VERSION = 1
"""The version of the file format; a file without a version has this version."""

Find = Callable[[str], Scenario]


def read_toml(path: Path, find: Find | None = None) -> Scenario:
    """Return the scenario in a TOML file. The function `find` returns a scenario that the file refers to by name.
    Raises UsageError with file, line and key."""
    file = read_toml_file(path)
    version = file.values.get("ddpsim")
    if version is not None and (type(version) is not int or version != VERSION):
        expected = f"{VERSION}, the version that this ddpsim reads: use the ddpsim that saved the file"
        file.reject_value("ddpsim", expected=expected)
    if "rank" in file.values and "scenario" in file.values:
        file.reject_key("rank", says="cannot be combined with `scenario`: leave one of them out")
    form: forms.ScenarioForm
    if "rank" in file.values:
        form = program = file.read_form(forms.ProgramForm)
        scenario = _scenario_of_program(file, program)
    elif "scenario" in file.values:
        form = other = file.read_form(forms.ReferenceForm)
        scenario = _scenario_of_reference(file, other, find)
    else:
        form = training = file.read_form(forms.TrainingForm)
        scenario = _scenario_of_training(file, training)
    scenario = _with_schedule_and_options(file, form, scenario)
    if not scenario.summary:
        file.reject_key("summary", says='is missing: add `summary = "..."`, one line on what the scenario shows')
    return scenario


def _with_schedule_and_options(file: TomlFile, form: forms.ScenarioForm, scenario: Scenario) -> Scenario:
    """Return the scenario with the schedule, engine and run options that the file gives."""
    try:
        choices = parse_choices(form.schedule) if form.schedule else scenario.choices
    except ReplayError:
        file.reject_value("schedule", expected='choices as in a replay token: write one such as "0x12.1.2"')
    faults = _faults_in_form(file, form, scenario.world_size)
    given = {name: getattr(form, name) for name in forms.OPTION_KEYS}
    options: dict[str, Any] = {
        name: None if value == NOTHING else value for name, value in given.items() if value != forms.OPTION_KEYS[name]
    }
    return replace(
        scenario,
        faults=(*scenario.faults, *faults),
        added_faults=(*scenario.added_faults, *faults) if isinstance(form, forms.ReferenceForm) else (),
        engine=form.runs_on or scenario.engine,
        choices=choices,
        hash_seed=scenario.hash_seed if form.hash_seed is None else form.hash_seed,
        **options,
    )


def _faults_in_form(file: TomlFile, form: forms.ScenarioForm, world_size: int) -> tuple[Fault, ...]:
    """Return the faults that the file gives. Their ranks cannot be checked if a program chooses how many there are."""
    said = list(tables_with_paths(form.fault, "fault"))
    for path, each in said:
        if 0 < world_size <= each.rank:
            file.reject_key(*path, "rank", says=f"is {each.rank}, expected a rank below world_size = {world_size}")
    return tuple(kind(**structs.asdict(own)) for _, own in said for table, kind in forms.FAULTS if type(own) is table)


def _scenario_of_training(file: TomlFile, form: forms.TrainingForm) -> Scenario:
    world_size = form.world_size or 4
    training = read_training(file, form, world_size)
    expect = form.expect or forms.ExpectedOfTraining()
    expected, under_ddp = _read_expectations(file, expect, world_size)
    if expect.oracle:
        try:
            oracle.check_has_defined_result(training, world_size)
        except UsageError as error:
            file.reject_key("expect", "oracle", says=f"is true, but {error}")
        if not any(_is_compared_with_oracle(each) for each in (expected, under_ddp or expected)):
            says = "is true, but the oracle only judges runs that pass or end in divergence.*: leave it out"
            file.reject_key("expect", "oracle", says=says)
    names_ranks = any(_has_keys_for_single_ranks(file, key) for key in ("exception", "fault"))
    blames = bool(expected.ranks or (under_ddp and under_ddp.ranks))
    fixed = None if training.fits_every_world and not blames and not names_ranks else world_size
    return Scenario(
        **_description_fields(file, form),
        program=rank_function_of_training(training),
        expected=expected,
        expected_under_ddp=under_ddp,
        world_size=world_size,
        min_world_size=fixed or min(2, world_size),
        max_world_size=fixed,
        args=(training,),
        reference=partial(reference_by_oracle, training) if expect.oracle else None,
    )


def _has_keys_for_single_ranks(file: TomlFile, key: str) -> bool:
    """Return True if a key of the training names particular ranks. A list with one number per rank does not count."""
    tables = file.values.get(key, [])
    return any("rank" in each or "ranks" in each for each in ([tables] if isinstance(tables, dict) else tables))


def _scenario_of_program(file: TomlFile, form: forms.ProgramForm) -> Scenario:
    """Return the scenario that runs the steps of every rank. Without an expectation in the file, the scenario expects
    the findings that `check` (a static analysis) predicts for the steps."""
    ranks = [each for _, each in tables_with_paths(form.rank, "rank")]
    world_size = form.world_size or len(ranks)
    value = {
        "format": FORMAT,
        "version": JSON_VERSION,
        "world_size": world_size,
        "groups": form.group or [],
        "ranks": [rank.steps for rank in ranks],
    }
    try:
        scenario = scenario_of_program(program_from_value(value), name="")
    except UsageError as error:
        raise UsageError(f"{file.location('rank')} {error}") from None
    return _with_expectation(file, form, form.expect, scenario)


def _scenario_of_reference(file: TomlFile, form: forms.ReferenceForm, find: Find | None) -> Scenario:
    """Return the other scenario that the file refers to, by name or by its path from the folder of this file."""
    if find is None or form.scenario.endswith(".toml"):
        expected = "a name in `ddpsim list`, FILE.py:FUNCTION or a program, in a file of your own"
        file.reject_value("scenario", expected=expected)
    try:
        name = replace_path_in_name(form.scenario, lambda path: str(file.path.parent / path))
        scenario = find(name).with_world_size(form.world_size or None)
    except UsageError as error:
        raise UsageError(f"{file.location('scenario')} {error}") from None
    return _with_expectation(file, form, form.expect, scenario)


def _with_expectation(
    file: TomlFile, form: forms.ScenarioForm, expect: forms.ExpectedOutcome | None, scenario: Scenario
) -> Scenario:
    """Return the scenario with the texts in the file, and with the expectation in the file if there is one."""
    if expect is not None:
        expected, under_ddp = _read_expectations(file, expect, scenario.world_size)
        scenario = replace(scenario, expected=expected, expected_under_ddp=under_ddp)
    return replace(scenario, **_description_fields(file, form))


def _description_fields(file: TomlFile, form: forms.ScenarioForm) -> dict[str, Any]:
    """Return the file's name, summary and other texts, as fields of `Scenario`."""
    return {
        "name": file.path.stem.replace("_", "-") if form.name is None else form.name,
        "about": f"{form.summary}\n\n{form.cause}",
        "tags": form.tags,
        "reports": form.reports,
    }


def _read_expectations(
    file: TomlFile, expect: forms.ExpectedOutcome, world_size: int
) -> tuple[Expectation, Expectation | None]:
    """Return the expected outcome on torch's engine, and the one on ddpsim's engine; None if it gives none."""
    expected = _read_expectation(file, ("expect",), expect, world_size)
    under_ddp = expect.ddp and _read_expectation(file, ("expect", "ddp"), expect.ddp, world_size)
    return expected, under_ddp or None


def _read_expectation(
    file: TomlFile, path: tuple[str, ...], form: forms.ExpectedOfEngine, world_size: int
) -> Expectation:
    code, ranks = form.finding, form.ranks
    verdict = form.verdict or (code.verdict if code else Verdict.PASS)
    if code is not None and code.verdict is not verdict:
        says = f"is {verdict.value!r}, but {code} means {code.verdict.value!r}: leave one of them out"
        file.reject_key(*path, "verdict", says=says)
    check_ranks_exist(file, (*path, "ranks"), ranks, world_size)
    if ranks is None and code is not None:
        says = f"is {code.value!r} without ranks: name the culprits, such as ranks = [1]"
        file.reject_key(*path, "finding", says=says)
    if ranks and code is None:
        file.reject_key(*path, "ranks", says="names culprits, but no finding is expected: add one")
    return Expectation(verdict, code, ranks or (), is_clean=code is None and verdict is Verdict.PASS)


def _is_compared_with_oracle(expected: Expectation) -> bool:
    """Return True if a run with this expected outcome is compared with training on one process."""
    diverges = expected.code is not None and expected.code.value.startswith("divergence.")
    return expected.verdict is Verdict.PASS or diverges
