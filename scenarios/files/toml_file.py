"""Read scenarios from TOML files.

A file has a declared training, the steps of each rank, or the name of another scenario and a schedule. `toml_forms.py`
has a form (a class with one field per key) for each of the three, and docs/scenarios.md lists every key. This module
reads a file into a form; `saving.py` writes a form into a file.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from ddpsim import UsageError, Verdict
from ddpsim.scenarios.files import toml_forms as forms
from ddpsim.scenarios.files.program_line import replace_path_in_name
from ddpsim.scenarios.files.toml_source import TomlFile, read_toml_file
from ddpsim.scenarios.files.toml_training import check_ranks_exist, read_training, tables_with_paths
from ddpsim.scenarios.files.value_scenarios import rank_function_of_training, scenario_of_program
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.training import oracle
from ddpsim.scenarios.training.reference import reference_by_oracle
from ddpsim.simulator.choices import parse_choices
from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.programs.program_json import FORMAT, program_from_value
from ddpsim.simulator.programs.program_json import VERSION as JSON_VERSION
from ddpsim.simulator.run_options import NOTHING

VERSION = 1
"""The version of the file format; a file without a version has this version."""

Find = Callable[[str], Scenario]
"""The type of a function that returns the scenario of a name."""

# --- the parts of a file ----------------------------------------------------------------------------------------------


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
    """Return the faults to inject that the file gives. Their ranks cannot be checked yet if a program chooses its own
    number of ranks."""
    said = list(tables_with_paths(form.fault, "fault"))
    for path, each in said:
        if 0 < world_size <= each.rank:
            file.reject_key(*path, "rank", says=f"is {each.rank}, expected a rank below world_size = {world_size}")
    return tuple(kind(**structs.asdict(own)) for _, own in said for table, kind in forms.FAULTS if type(own) is table)


def _scenario_of_training(file: TomlFile, form: forms.TrainingForm) -> Scenario:
    """Return a declared training as a scenario."""
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
    """Return the expected outcome on torch's engine, and the one on ddpsim's engine; None if the file gives no other
    one."""
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
