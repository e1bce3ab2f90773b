"""Where a shrunk scenario is saved, and under what name it finds the program that it runs."""

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
    """Beside the file that a scenario comes from, `FILE-shrunk.toml`; `NAME-shrunk.toml` here for one with a name."""
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
    """Raise UsageError if there is something already, or if a file there would not be taken for a scenario.

    `option` is the one that names the file.
    """
    if path.suffix != ".toml":
        raise UsageError(f"output is {str(path)!r}, expected a name that ends in .toml: `ddpsim run` knows it by that")
    check_new(path, option)


def check_new(path: Path, option: str) -> None:
    """Raise UsageError if there is something already."""
    if path.exists():
        raise UsageError(
            f"{path} exists, expected a new file, so that nothing is lost: name another with {option}, or remove it"
        )


_SHRUNK = "shrunk from"


def save_shrunk(scenario: Scenario, name: str, path: Path, *, how: str = _SHRUNK) -> None:
    """Save what came of shrinking the scenario `name`, or in another way. Raises UsageError if it cannot be written."""
    save(_as_saved(scenario, name, path), path, summary=_summary(scenario, name, how))


def shrunk_text(scenario: Scenario, name: str, path: Path) -> str:
    """What `save_shrunk` writes."""
    return text_of(_as_saved(scenario, name, path), summary=_summary(scenario, name, _SHRUNK))


def _as_saved(scenario: Scenario, name: str, path: Path) -> Scenario:
    return replace(scenario, name=_seen_from(path, _program_of(name)))


def _summary(scenario: Scenario, name: str, how: str) -> str:
    """What its own tells of, such as how many ranks there are, need not be there any more."""
    return f"{how} {name}" + (f": {scenario.summary}" if scenario.summary else "")


def _program_of(name: str) -> str:
    """The name of what is run: that of a file may stand for another scenario, under a schedule."""
    if not name.endswith(".toml"):
        return name
    other = open_toml(Path(name)).values.get("scenario", "")
    return _relative(other, Path(name).parent, Path()) if other else name


def _seen_from(path: Path, name: str) -> str:
    """A name as a file says it: that of a Python file is looked for beside it."""
    return _relative(name, Path(), path.parent)


def _relative(name: str, folder: Path, other: Path) -> str:
    """What is in a Python file, as seen from another folder; any other name as it is."""
    return with_path(name, lambda file: os.path.relpath(folder / file, other))
