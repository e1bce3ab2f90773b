"""Save a shrunk scenario: choose the file, and the name by which it refers to its program."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.files.program_line import path_in, with_path, words_of_program
from ddpsim.scenarios.files.saving import save, text_of
from ddpsim.scenarios.files.toml_source import open_toml
from ddpsim.scenarios.model import Scenario


def default_path(name: str) -> Path:
    """Return the path of a shrunk scenario: `FILE-shrunk.toml` in its file's folder, or `NAME-shrunk.toml` here."""
    file, words = path_in(name), words_of_program(name)
    if file:
        of_function = [] if words else [name.rpartition(":")[2]]
        return Path(file).with_name("-".join([Path(file).stem, *of_function, "shrunk.toml"]))
    if words:
        return Path(f"{words[1]}-shrunk.toml")
    if name.endswith(".toml"):
        return Path(name).with_name(f"{Path(name).stem}-shrunk.toml")
    return Path(f"{name}-shrunk.toml")


def check_free(path: Path, option: str = "-o") -> None:
    """Raise UsageError if the file exists, or has no name of a scenario file.

    `option` is the command-line option that names the file.
    """
    if path.suffix != ".toml":
        raise UsageError(f"output is {str(path)!r}, expected a name that ends in .toml, so that `ddpsim run` reads it")
    check_new(path, option)


def check_new(path: Path, option: str) -> None:
    """Raise UsageError if the file exists."""
    if path.exists():
        raise UsageError(
            f"{path} exists, expected a new file, so that nothing is lost: name another with {option}, or remove it"
        )


_SHRUNK = "shrunk from"


def save_shrunk(scenario: Scenario, name: str, path: Path, *, how: str = _SHRUNK) -> None:
    """Save the scenario made from scenario `name`; `how` says how. Raises UsageError if it cannot be written."""
    save(_as_saved(scenario, name, path), path, summary=_summary(scenario, name, how))


def shrunk_text(scenario: Scenario, name: str, path: Path) -> str:
    """Return the text that `save_shrunk` writes."""
    return text_of(_as_saved(scenario, name, path), summary=_summary(scenario, name, _SHRUNK))


def _as_saved(scenario: Scenario, name: str, path: Path) -> Scenario:
    return replace(scenario, name=_relative(_program_of(name), Path(), path.parent))


def _summary(scenario: Scenario, name: str, how: str) -> str:
    # The quoted summary of the original may be outdated, for instance in its number of ranks.
    return f"{how} {name}" + (f": {scenario.summary}" if scenario.summary else "")


def _program_of(name: str) -> str:
    """Return the name of the program: a TOML file may only refer to another scenario."""
    if not name.endswith(".toml"):
        return name
    other = open_toml(Path(name)).values.get("scenario", "")
    return _relative(other, Path(name).parent, Path()) if other else name


def _relative(name: str, folder: Path, other: Path) -> str:
    """Return a name with a Python file's path changed from one folder to another; other names are unchanged."""
    return with_path(name, lambda file: os.path.relpath(folder / file, other))
