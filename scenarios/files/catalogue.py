"""List the scenarios that come with ddpsim, by reading their files without importing them.

Importing all files takes seconds, but a list should appear at once. So only the arguments of `@scenario` are read from
a Python file, and a few keys from a TOML file. A test checks that the list equals what the registry loads.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ddpsim import Code, UsageError, Verdict
from ddpsim.scenarios.model import CLEAN, PASSES, TWIN, Expectation, Scenario, every_rank, finds, odd_one_out

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("zoo", "join")
_SUFFIXES = (".py", ".toml")
_NAMES = {
    **{"CLEAN": CLEAN, "Code": Code, "PASSES": PASSES, "Verdict": Verdict},
    **{each.__name__: each for each in (every_rank, finds, odd_one_out)},
}
"""The names that the arguments of `@scenario` shown in a list may contain, with their values."""
_SHOWN = ("name", "about", "expected", "under_ddp", "world_size", "tags")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A scenario as `ddpsim list` shows it, read from its file without importing it."""

    name: str
    summary: str
    expected: Expectation
    expected_under_ddp: Expectation | None
    world_size: int
    tags: tuple[str, ...]
    repairs: str = ""


Listed: TypeAlias = CatalogueEntry | Scenario
"""A scenario as listed: read from its file (`CatalogueEntry`), or loaded (`Scenario`)."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The scenarios of some folders, by name, in alphabetical order."""

    entries: Mapping[str, CatalogueEntry]
    broken: tuple[str, ...]
    """For each file that cannot be read: the reason."""


def read_catalogue(root: Path = PACKAGE, folders: Iterable[str] = FOLDERS) -> Catalogue:
    """Return the scenarios in the folders of `root`, by default in the folders of ddpsim."""
    found: list[CatalogueEntry] = []
    broken: list[str] = []
    for path in scenario_files(root, folders):
        try:
            text = path.read_text(encoding="utf-8")
            found += _entries_in_python(text, path.stem) if path.suffix == ".py" else [_entry_in_toml(text, path)]
        except (OSError, SyntaxError, ValueError, LookupError, NameError, UsageError) as error:
            message = " ".join(str(error).split())
            broken.append(f"{path} cannot be listed ({message}): run it to see what is wrong")
    return Catalogue({entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}, tuple(broken))


def scenario_files(root: Path, folders: Iterable[str]) -> tuple[Path, ...]:
    """Return the files of scenarios. The name of a file is its scenario's name, with underscores."""
    paths = [path for folder in folders for path in (root / folder).iterdir()]
    return tuple(path for path in sorted(paths) if path.suffix in _SUFFIXES and not path.name.startswith("_"))


def _entries_in_python(text: str, file_name: str) -> Iterator[CatalogueEntry]:
    """Yield the scenarios defined in the text of a Python file, with their repaired twins."""
    module = ast.parse(text)
    names = {**_NAMES, "__doc__": ast.get_docstring(module, clean=False)}
    found: dict[str, CatalogueEntry] = {}
    for function in (each for each in module.body if isinstance(each, ast.FunctionDef)):
        for call in (each for each in function.decorator_list if isinstance(each, ast.Call)):
            kind = ast.unparse(call.func)
            if kind == "scenario":
                shown = {str(each.arg): ast.Expression(each.value) for each in call.keywords if each.arg in _SHOWN}
                values = {key: eval(compile(each, "@scenario", "eval"), dict(names)) for key, each in shown.items()}
                if function.name == file_name:
                    values.setdefault("about", names["__doc__"])
                entry = _entry_of_scenario(function, values)
            elif kind == "repairs":
                entry = _entry_of_repaired_twin(function, found[ast.unparse(call.args[0])])
            else:
                continue
            found[function.name] = entry
            yield entry


def _entry_of_scenario(function: ast.FunctionDef, values: Mapping[str, Any]) -> CatalogueEntry:
    """Return the list entry of a scenario, with the same values as `@scenario` would give the scenario."""
    expected = values.get("expected", PASSES)
    return CatalogueEntry(
        values.get("name") or function.name.replace("_", "-"),
        _first_line(values.get("about") or ast.get_docstring(function) or ""),
        expected,
        values.get("under_ddp") or expected,
        values.get("world_size", 4),
        tuple(values.get("tags", ())),
    )


def _entry_of_repaired_twin(function: ast.FunctionDef, bug: CatalogueEntry) -> CatalogueEntry:
    """Return the list entry of a repaired twin, with the same values as the decorator `@repairs` would give it."""
    summary = _first_line(ast.get_docstring(function) or "")
    return CatalogueEntry(bug.name + TWIN, summary, CLEAN, None, bug.world_size, bug.tags, repairs=bug.name)


def _first_line(about: str) -> str:
    return about.strip().partition("\n")[0]


def _entry_in_toml(text: str, path: Path) -> CatalogueEntry:
    values = tomllib.loads(text)
    expect = values.get("expect", {})
    return CatalogueEntry(
        values.get("name", path.stem.replace("_", "-")),
        _first_line(values["summary"]),
        _expectation_in_toml(expect),
        _expectation_in_toml(expect["ddp"]) if "ddp" in expect else None,
        values.get("world_size", 4),
        tuple(values.get("tags", ())),
    )


def _expectation_in_toml(expect: Mapping[str, Any]) -> Expectation:
    code = Code(expect["finding"]) if "finding" in expect else None
    verdict = Verdict(expect["verdict"]) if "verdict" in expect else code.verdict if code else Verdict.PASS
    return Expectation(verdict, code, tuple(expect.get("ranks", ())))
