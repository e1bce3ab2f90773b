"""`ddpsim list`: list the scenarios that come with ddpsim, or those in the user's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import Tags, scenarios_with_tags
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError

if TYPE_CHECKING:
    from ddpsim.scenarios.files.catalogue import Listed


def list_scenarios(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Your files or folders: Python files with @scenario functions, and TOML files.  "
            "[default: the scenarios that come with ddpsim]",
        ),
    ] = None,
    tags: Tags = None,
    with_twins: Annotated[bool, typer.Option("--all", help="List the repaired twins, too.")] = False,
) -> int:
    """List scenarios with their expected outcomes."""
    found, broken = _scenarios_in_files(paths)
    for problem in broken:
        output.print_note(problem)
    chosen = scenarios_with_tags(found, tags or ()) if found else {}
    twins = [name for name, scenario in chosen.items() if scenario.repairs and not with_twins]
    if shown := {name: scenario for name, scenario in chosen.items() if name not in twins}:
        output.print_scenario_list(shown)
    if twins:
        output.print_note(f"repaired twins are not listed, such as {twins[0]}: --all lists them ({len(twins)})")
    known = sorted({tag for scenario in found.values() for tag in scenario.tags})
    if known and not tags:
        output.print_note(f"--tag TAG lists only scenarios with that tag: {', '.join(known)}")
    return ExitStatus.OTHERWISE if broken else ExitStatus.AS_EXPECTED


def _scenarios_in_files(paths: Sequence[Path] | None) -> tuple[Mapping[str, Listed], Sequence[str]]:
    """Return the scenarios in the given files, by name; and for each file that cannot be loaded, the reason."""
    if not paths:
        from ddpsim.scenarios.files.catalogue import read_catalogue

        own = read_catalogue()
        return own.entries, own.broken
    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.files.python_file import load_scenarios

    found: dict[str, Listed] = {}
    broken: list[str] = []
    for file in [file for path in paths for file in _scenario_files_at(path)]:
        try:
            found |= load_scenarios(file, load)
        except UsageError as error:
            broken.append(str(error))
    if not found and not broken:
        raise UsageError(
            f"{', '.join(map(str, paths))} has no scenario, expected @scenario functions or TOML files: see "
            "docs/scenarios.md"
        )
    return found, broken


def _scenario_files_at(path: Path) -> list[Path]:
    """Return the files of scenarios at a path: the file itself, or the files of a folder that may contain scenarios."""
    from ddpsim.scenarios.files.python_file import SUFFIXES

    try:
        files = sorted(path.iterdir()) if path.is_dir() else []
        found = [each for each in files if each.suffix in SUFFIXES and each.name[0] not in "_."]
        is_there, is_file = path.exists(), not path.is_dir()
    except OSError as error:  # an impossible file name, or no permission
        raise UsageError(f"path is {str(path)!r}, which cannot be read ({error.strerror}): correct the path") from error
    if not is_there:
        raise UsageError(f"path is {str(path)!r}, which does not exist: correct the path")
    if is_file and path.suffix not in SUFFIXES:
        raise UsageError(
            f"path is {str(path)!r}, expected a folder, or a file that ends in {' or '.join(SUFFIXES)}: correct it"
        )
    return [path] if is_file else found
