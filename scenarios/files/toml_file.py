"""Read scenarios from TOML files: a declared training, the steps of each rank, or another scenario with a schedule.

`toml_forms.py` has one form for each of the three, and docs/scenarios.md lists every key. A file is read into a form,
and `saving.py` writes it from one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from ddpsim import UsageError, Verdict
from ddpsim.scenarios.files.program_line import with_path
from ddpsim.scenarios.files.toml_forms import (
    FAULTS,
    OPTION_KEYS,
    Expected,
    ExpectedOfEngine,
    ExpectedOfTraining,
    OtherForm,
    ProgramForm,
    ScenarioForm,
    TrainingForm,
)
from ddpsim.scenarios.files.toml_source import TomlFile, open_toml
from ddpsim.scenarios.files.toml_training import check_ranks, each_of, training_in
from ddpsim.scenarios.files.value_scenarios import of_program, program_of_training
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.training import oracle
from ddpsim.scenarios.training.reference import by_oracle
from ddpsim.simulator.choices import choices_in
from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.programs.program_json import FORMAT, program_of
from ddpsim.simulator.programs.program_json import VERSION as JSON_VERSION
from ddpsim.simulator.run_options import NOTHING

VERSION = 1
"""The version of the format; also that of a file without a version."""

Find = Callable[[str], Scenario]
"""A function that returns the scenario of a name."""

# --- the parts of a file ----------------------------------------------------------------------------------------------


def read_toml(path: Path, find: Find | None = None) -> Scenario:
    """Return the scenario in a file; `find` looks up another one. Raises UsageError with file, line and key."""
    file = open_toml(path)
    version = file.values.get("ddpsim")
    if version is not None and (type(version) is not int or version != VERSION):
        expected = f"{VERSION}, the version that this ddpsim reads: use the ddpsim that saved the file"
        file.refuse("ddpsim", expected=expected)
    if "rank" in file.values and "scenario" in file.values:
        file.contradict("rank", says="cannot be combined with `scenario`: leave one of them out")
    form: ScenarioForm
    if "rank" in file.values:
        form = program = file.read(ProgramForm)
        scenario = _program(file, program)
    elif "scenario" in file.values:
        form = other = file.read(OtherForm)
        scenario = _other(file, other, find)
    else:
        form = training = file.read(TrainingForm)
        scenario = _training(file, training)
    scenario = _under_schedule(file, form, scenario)
    if not scenario.summary:
        file.contradict("summary", says='is missing: add `summary = "..."`, one line on what the scenario shows')
    return scenario


def _under_schedule(file: TomlFile, form: ScenarioForm, scenario: Scenario) -> Scenario:
    """Return the scenario with the schedule, engine and run options of the file."""
    try:
        choices = choices_in(form.schedule) if form.schedule else scenario.choices
    except ReplayError:
        file.refuse("schedule", expected='choices as in a replay token: write one such as "0x12.1.2"')
    faults = _faults(file, form, scenario.world_size)
    given = {name: getattr(form, name) for name in OPTION_KEYS}
    options: dict[str, Any] = {
        name: None if value == NOTHING else value for name, value in given.items() if value != OPTION_KEYS[name]
    }
    return replace(
        scenario,
        faults=(*scenario.faults, *faults),
        added_faults=(*scenario.added_faults, *faults) if isinstance(form, OtherForm) else (),
        engine=form.runs_on or scenario.engine,
        choices=choices,
        hash_seed=scenario.hash_seed if form.hash_seed is None else form.hash_seed,
        **options,
    )


def _faults(file: TomlFile, form: ScenarioForm, world_size: int) -> tuple[Fault, ...]:
    """Return the faults in the file. A program that chooses its own number of ranks has no world size to check yet."""
    said = list(each_of(form.fault, "fault"))
    for path, each in said:
        if 0 < world_size <= each.rank:
            file.contradict(*path, "rank", says=f"is {each.rank}, expected a rank below world_size = {world_size}")
    return tuple(kind(**structs.asdict(own)) for _, own in said for table, kind in FAULTS if type(own) is table)


def _training(file: TomlFile, form: TrainingForm) -> Scenario:
    """Return a declared training as a scenario."""
    world_size = form.world_size or 4
    training = training_in(file, form, world_size)
    expect = form.expect or ExpectedOfTraining()
    expected, under_ddp = _expectations(file, expect, world_size)
    if expect.oracle:
        try:
            oracle.check_has_meaning(training, world_size)
        except UsageError as error:
            file.contradict("expect", "oracle", says=f"is true, but {error}")
        if not any(_is_compared(each) for each in (expected, under_ddp or expected)):
            says = "is true, but the oracle only judges runs that pass or end in divergence.*: leave it out"
            file.contradict("expect", "oracle", says=says)
    names_ranks = any(_says_which(file, key) for key in ("exception", "fault"))
    blames = bool(expected.ranks or (under_ddp and under_ddp.ranks))
    fixed = None if training.fits_every_world and not blames and not names_ranks else world_size
    return Scenario(
        **_description(file, form),
        program=program_of_training(training),
        expected=expected,
        expected_under_ddp=under_ddp,
        world_size=world_size,
        min_world_size=fixed or min(2, world_size),
        max_world_size=fixed,
        args=(training,),
        reference=partial(by_oracle, training) if expect.oracle else None,
    )


def _says_which(file: TomlFile, key: str) -> bool:
    """Return True if a key names particular ranks; one number per rank does not count."""
    tables = file.values.get(key, [])
    return any("rank" in each or "ranks" in each for each in ([tables] if isinstance(tables, dict) else tables))


def _program(file: TomlFile, form: ProgramForm) -> Scenario:
    """Return the steps of every rank as a scenario. Without an expectation it expects what `check` finds."""
    ranks = [each for _, each in each_of(form.rank, "rank")]
    world_size = form.world_size or len(ranks)
    value = {
        "format": FORMAT,
        "version": JSON_VERSION,
        "world_size": world_size,
        "groups": form.group or [],
        "ranks": [rank.steps for rank in ranks],
    }
    try:
        scenario = of_program(program_of(value), name="")
    except UsageError as error:
        raise UsageError(f"{file.location('rank')} {error}") from None
    return _as_expected(file, form, form.expect, scenario)


def _other(file: TomlFile, form: OtherForm, find: Find | None) -> Scenario:
    """Return another scenario, by its name or file; a file is looked up from this file's folder."""
    if find is None or form.scenario.endswith(".toml"):
        file.refuse(
            "scenario", expected="a name in `ddpsim list`, FILE.py:FUNCTION or a program, in a file of your own"
        )
    try:
        name = with_path(form.scenario, lambda path: str(file.path.parent / path))
        scenario = find(name).with_world_size(form.world_size or None)
    except UsageError as error:
        raise UsageError(f"{file.location('scenario')} {error}") from None
    return _as_expected(file, form, form.expect, scenario)


def _as_expected(file: TomlFile, form: ScenarioForm, expect: Expected | None, scenario: Scenario) -> Scenario:
    """Return the scenario with the file's description, and with its expectation if it has one."""
    if expect is not None:
        expected, under_ddp = _expectations(file, expect, scenario.world_size)
        scenario = replace(scenario, expected=expected, expected_under_ddp=under_ddp)
    return replace(scenario, **_description(file, form))


def _description(file: TomlFile, form: ScenarioForm) -> dict[str, Any]:
    """Return the name, summary and other texts of the scenario."""
    return {
        "name": file.path.stem.replace("_", "-") if form.name is None else form.name,
        "about": f"{form.summary}\n\n{form.cause}",
        "tags": form.tags,
        "reports": form.reports,
    }


def _expectations(file: TomlFile, expect: Expected, world_size: int) -> tuple[Expectation, Expectation | None]:
    """Return the expected outcome, and the expected outcome on the engine of ddpsim if that differs."""
    expected = _expectation(file, ("expect",), expect, world_size)
    under_ddp = expect.ddp and _expectation(file, ("expect", "ddp"), expect.ddp, world_size)
    return expected, under_ddp or None


def _expectation(file: TomlFile, path: tuple[str, ...], form: ExpectedOfEngine, world_size: int) -> Expectation:
    code, ranks = form.finding, form.ranks
    verdict = form.verdict or (code.verdict if code else Verdict.PASS)
    if code is not None and code.verdict is not verdict:
        says = f"is {verdict.value!r}, but {code} means {code.verdict.value!r}: leave one of them out"
        file.contradict(*path, "verdict", says=says)
    check_ranks(file, (*path, "ranks"), ranks, world_size)
    if ranks is None and code is not None:
        says = f"is {code.value!r} without ranks: name the culprits, such as ranks = [1]"
        file.contradict(*path, "finding", says=says)
    if ranks and code is None:
        file.contradict(*path, "ranks", says="names culprits, but no finding is expected: add one")
    return Expectation(verdict, code, ranks or (), is_clean=code is None and verdict is Verdict.PASS)


def _is_compared(expected: Expectation) -> bool:
    """Return True if a run with this outcome is compared with training on one process."""
    diverges = expected.code is not None and expected.code.value.startswith("divergence.")
    return expected.verdict is Verdict.PASS or diverges
