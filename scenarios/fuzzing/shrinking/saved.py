"""Save a shrunk scenario: choose the file, and the name by which the file refers to the scenario's program."""

import os
from dataclasses import replace
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.files.program_line import python_file_in_name, replace_path_in_name, split_program_line
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.files.toml_source import read_toml_file
from ddpsim.scenarios.model import Scenario


def default_output_path(name: str) -> Path:
    """Return the path for a shrunk scenario: `FILE-shrunk.toml` in the folder of the original file, or
    `NAME-shrunk.toml` in the working folder."""
    file, words = python_file_in_name(name), split_program_line(name)
    if file:
        of_function = [] if words else [name.rpartition(":")[2]]
        return Path(file).with_name("-".join([Path(file).stem, *of_function, "shrunk.toml"]))
    if words:
        return Path(f"{words[1]}-shrunk.toml")
    if name.endswith(".toml"):
        return Path(name).with_name(f"{Path(name).stem}-shrunk.toml")
    return Path(f"{name}-shrunk.toml")


def check_output_file(path: Path, option: str = "-o") -> None:
    """Raise UsageError if the file exists, or if its name is not that of a scenario file."""
    if path.suffix != ".toml":
        raise UsageError(f"output is {str(path)!r}, expected a name that ends in .toml, so that `ddpsim run` reads it")
    check_file_is_new(path, option)


def check_file_is_new(path: Path, option: str) -> None:
    """Raise UsageError if the file exists."""
    if path.exists():
        raise UsageError(
            f"{path} exists, expected a new file, so that nothing is lost: name another with {option}, or remove it"
        )


def shrunk_scenario_text(scenario: Scenario, name: str, path: Path, *, how: str = "shrunk from") -> str:
    """Return the file text for a scenario that was shrunk from the scenario `name`; `how` describes the shrinking."""
    # The quoted summary of the original may be outdated, for instance in its number of ranks.
    summary = f"{how} {name}" + (f": {scenario.summary}" if scenario.summary else "")
    program = _relative_program_name(_program_name(name), Path(), path.parent)
    return scenario_as_toml(replace(scenario, name=program), summary=summary)


def _program_name(name: str) -> str:
    """Return the name of the program that a scenario runs: the one to which a TOML file refers, if it does."""
    if not name.endswith(".toml"):
        return name
    other = read_toml_file(Path(name)).values.get("scenario", "")
    return _relative_program_name(other, Path(name).parent, Path()) if other else name


def _relative_program_name(name: str, folder: Path, other: Path) -> str:
    """Return a program's name with the relative path of its Python file adjusted from one folder to another."""
    return replace_path_in_name(name, lambda file: os.path.relpath(folder / file, other))
