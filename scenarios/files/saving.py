"""Write scenarios as TOML files, which `toml_file.py` reads: failures that fuzzing found, and shrunk scenarios."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from msgspec import structs

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files import toml_forms as forms
from ddpsim.scenarios.files.toml_file import VERSION
from ddpsim.scenarios.files.value_scenarios import expectation_of_program, program_of_scenario, training_of_scenario
from ddpsim.scenarios.model import Expectation, Scenario
from ddpsim.scenarios.training.training import IterationRule, JoinOptions, Training
from ddpsim.simulator.choices import choices_text
from ddpsim.simulator.programs.program_json import to_json
from ddpsim.simulator.run_options import NOTHING
from ddpsim.simulator.whole_file import write_atomically


def save_scenario(scenario: Scenario, path: Path, *, summary: str = "", cause: str = "") -> None:
    """Write a scenario into a file, replacing an existing one. Raises UsageError if it cannot be written."""
    write_text(path, scenario_as_toml(scenario, summary=summary, cause=cause))


def write_text(path: Path, text: str, *, advice: str = "give a writable file") -> None:
    """Write a file, and its folder if it is missing. Raises UsageError with the advice if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): {advice}") from None


def scenario_as_toml(scenario: Scenario, *, summary: str = "", cause: str = "") -> str:
    """Return the text of a TOML file that loads as this scenario. Summary and cause are by default the scenario's own.
    If the scenario is a function, the file refers to the function by name, and its expectation is not written."""
    said = {
        "ddpsim": VERSION,
        "summary": summary or scenario.summary or "a saved scenario",
        "cause": cause or scenario.cause,
        "world_size": scenario.world_size,
        "runs_on": None if scenario.engine is Engine.TORCH else scenario.engine,
        "schedule": choices_text(scenario.choices) if scenario.choices else "",
        **_run_option_keys(scenario),
        "hash_seed": scenario.hash_seed,
        "tags": scenario.tags,
        "reports": scenario.reports,
    }
    built = msgspec.to_builtins(_form_of_scenario(scenario, said | {"fault": _fault_tables(scenario)}))
    # In the order above, because a form that declares one of these keys again has it further down; tables come last.
    order = (*said, *(key for key in built if key not in _LAST), *_LAST)
    values = {key: built[key] for key in dict.fromkeys(order) if key in built}
    for rank in values.get("rank", ()):
        rank["steps"] = _steps_as_toml_array(rank["steps"])
    return tomlkit.dumps(values)


_LAST = ("fault", "expect")


def _fault_tables(scenario: Scenario) -> tuple[forms.FaultTable, ...]:
    """Return the TOML tables of the faults to write.

    If the file refers to a scenario by name, the named scenario's own faults are left out.
    """
    is_value = training_of_scenario(scenario) is not None or program_of_scenario(scenario) is not None
    said = scenario.faults if is_value else scenario.added_faults
    faults = [form(**dataclasses.asdict(each)) for each in said for form, kind in forms.FAULTS if type(each) is kind]
    return tuple(faults)  # from a list: in Python 3.10 tuple() of a generator is not the () object of the default


def _form_of_scenario(scenario: Scenario, said: dict[str, Any]) -> forms.ScenarioForm:
    """Return the scenario as a form (a class with one field per file key). `said` has the values of the common keys."""
    training, program = training_of_scenario(scenario), program_of_scenario(scenario)
    if training is not None:
        return _form_of_training(_drop_unreached_exceptions(training, scenario.world_size), scenario, said)
    if program is None:
        return forms.ReferenceForm(**said, scenario=scenario.name)
    is_as_found = scenario.expected == expectation_of_program(program) and scenario.expected_under_ddp is None
    value = json.loads(to_json(program))
    said |= {"group": value["groups"] or None, "rank": tuple(map(forms.RankTable, value["ranks"]))}
    return forms.ProgramForm(
        **said, **({} if is_as_found else {"expect": _expect_table(forms.ExpectedOutcome, scenario)})
    )


def _drop_unreached_exceptions(training: Training, world_size: int) -> Training:
    """Remove rules for exceptional iterations that none of their ranks reaches: a file may not contain such rules."""
    kept = []
    for each in training.exceptions:
        ranks = [rank for rank in range(world_size) if each.ranks is None or rank in each.ranks]
        count = max(map(training.iteration_count, ranks), default=0)
        iterations = each.iterations and tuple(i for i in each.iterations if i < count)
        if iterations != ():
            kept.append(structs.replace(each, iterations=iterations))
    return dataclasses.replace(training, exceptions=tuple(kept))


def _form_of_training(training: Training, scenario: Scenario, said: dict[str, Any]) -> forms.TrainingForm:
    networks = tuple({"name": each.name, **each.options} for each in training.networks)
    rule, mixed = training.iterations, training.mixed_precision
    expect = _expect_table(forms.ExpectedOfTraining, scenario, oracle=scenario.reference is not None)
    return forms.TrainingForm(
        **said,
        network=networks[0] if len(networks) == 1 else networks,
        iterations=rule.start if isinstance(rule, IterationRule) and rule == IterationRule(rule.start) else rule,
        dtype=forms.Dtype(str(training.dtype).removeprefix("torch.")),
        mixed_precision=None if mixed is None else forms.MixedPrecision(str(mixed).removeprefix("torch.")),
        join=True if training.join == JoinOptions() else training.join or False,
        optimizer=training.optimizer,
        engine=dict(training.engine_options),
        exception=training.exceptions,
        expect=None if expect == forms.ExpectedOfTraining() else expect,
        **{name: getattr(training, name) for name in forms.ALIKE},
    )


def _steps_as_toml_array(steps: list[Any]) -> Any:
    """Return the steps of a rank as a TOML array with one step per line."""
    lines = tomlkit.array().multiline(bool(steps))
    for step in steps:
        table = tomlkit.inline_table()  # tomlkit writes a dictionary without spaces after its commas
        if isinstance(step, dict):
            table.update(step)
        lines.append(table if isinstance(step, dict) else step)
    return lines


def _expect_table(kind: type[forms.ExpectedOutcome], scenario: Scenario, **other: Any) -> Any:
    under_ddp = scenario.expected_under_ddp
    own = None if under_ddp is None else forms.ExpectedOfEngine(**_expectation_keys(under_ddp, scenario.world_size))
    return kind(**_expectation_keys(scenario.expected, scenario.world_size), ddp=own, **other)


def _expectation_keys(expected: Expectation, world_size: int) -> dict[str, Any]:
    """Return the file keys that describe an expectation; none if no finding is expected."""
    if expected.code is not None:
        ranks = expected.ranks(world_size) if callable(expected.ranks) else expected.ranks
        return {"finding": expected.code, "ranks": ranks}
    return {} if expected.is_clean else {"verdict": expected.verdict}


def _run_option_keys(scenario: Scenario) -> dict[str, Any]:
    """Return the keys of a scenario's run options that differ from the defaults."""
    defaults = {each.name: each.default for each in dataclasses.fields(Scenario)}
    values = {name: getattr(scenario, name) for name in forms.OPTION_KEYS}
    given = {name: value for name, value in values.items() if value != defaults[name]}
    return {name: NOTHING if value is None else value for name, value in given.items()}
