"""Scenarios in files: Python files with scenarios or functions of a rank, and TOML files of declared trainings."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ddpsim import UsageError
from ddpsim.scenarios.files.toml_file import Find, read_toml
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.names import nearest
from ddpsim.scenarios.ranks.function import of_a_rank

SUFFIXES = (".py", ".toml")


def scenarios_in(path: Path, find: Find | None = None) -> dict[str, Scenario]:
    """The scenarios of a file, in the order in which they stand there, by what `ddpsim run` calls them.

    `find` finds one by the name that a file may say instead of having its own.

    Raises UsageError if it cannot be loaded. Nothing stays imported from its folder, so that another file can be next.
    """
    if path.suffix == ".toml":
        return {str(path): read_toml(path, find)}
    try:
        return {f"{path}:{variable}": scenario for variable, scenario in scenarios_of(execute(path)).items()}
    finally:
        _leave_folder()


def scenarios_of(module: ModuleType) -> dict[str, Scenario]:
    """The scenarios that a module has made itself, not those it has imported, by its variables."""
    found: dict[str, Scenario] = {}
    for variable, value in vars(module).items():
        is_known = any(value is each for each in found.values())
        if isinstance(value, Scenario) and _is_defined_in(module, value) and not is_known:
            found[variable] = value
    return found


def program_in(path: Path, function: str) -> Callable[..., Any] | Scenario:
    """A function of a Python file, or a scenario that was made of one. Raises UsageError if there is none.

    What it imports when it runs may come from its folder, too, until another file is loaded.
    """
    module = execute(path)
    program = getattr(module, function, None)
    if not callable(program) and not isinstance(program, Scenario):
        functions = [key for key, value in vars(module).items() if _is_defined_in(module, value)]
        advice = nearest(function, functions) or f"its functions are {', '.join(functions) or 'none'}"
        raise UsageError(f"scenario is {f'{path}:{function}'!r}, but {path} has no function {function!r}: {advice}")
    return program if isinstance(program, Scenario) else of_a_rank(program, f"{path}:{function}")


def execute(path: Path) -> ModuleType:
    """The module in a file, executed as an import would: its `if __name__ == "__main__"` part is left out.

    As for a script, the file's folder can be imported from; it goes to the end of `sys.path`, where it hides nothing.
    The folder of the file before is left: two files may each have a `helper.py` beside them.
    """
    name = f"ddpsim_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _enter_folder(str(path.resolve().parent))
    sys.modules[name] = module  # where dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(import_problem(path, error)) from error
    return module


def import_problem(path: Path, error: BaseException) -> str:
    """One line about what a file raised while it was imported, with the line of the file.

    If a file beside it raised that, that one, too.
    """
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # where it is stands in `locations`
    message = " ".join(f"{type(error).__name__}: {text}".split())
    locations = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        locations.append((Path(error.filename), error.lineno))
    own = path.absolute()
    lines = [line for file, line in locations if file == own]
    last, last_line = locations[-1] if locations else (own, None)
    location = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, UsageError):
        return str(error) if str(error).startswith(str(own)) else f"{location}: {error}"
    folder = path.resolve().parent
    is_beside = last != own and last.is_relative_to(folder)
    return (
        f"{location} raised {message}"
        f"{f' (at {path.parent / last.relative_to(folder)}:{last_line})' if is_beside else ''} while it was imported, "
        'expected it to define functions only: put what starts it under `if __name__ == "__main__":`'
    )


def _is_defined_in(module: ModuleType, value: object) -> bool:
    program = value.program if isinstance(value, Scenario) else value
    return callable(program) and getattr(program, "__module__", None) == module.__name__


# --- the folder of the file that is loaded ----------------------------------------------------------------------------


class _ProgramFolder(str):
    """An entry of `sys.path` that is there for the file loaded last."""

    __slots__ = ("imported_before",)
    imported_before: frozenset[str]


def _enter_folder(folder: str) -> None:
    if any(isinstance(entry, _ProgramFolder) and entry == folder for entry in sys.path):
        return
    _leave_folder()
    if folder not in sys.path:
        entry = _ProgramFolder(folder)
        entry.imported_before = frozenset(sys.modules)
        sys.path.append(entry)


def _leave_folder() -> None:
    """Forget what the file loaded last has imported from its folder, and take that from `sys.path`."""
    for entry in [entry for entry in sys.path if isinstance(entry, _ProgramFolder)]:
        sys.path[:] = [other for other in sys.path if other is not entry]
        tops = {name.partition(".")[0] for name in sys.modules} - entry.imported_before
        beside = {top for top in tops if top in sys.modules and _is_beside(sys.modules[top], Path(entry))}
        for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
            del sys.modules[name]
    importlib.invalidate_caches()


def _is_beside(module: ModuleType, folder: Path) -> bool:
    """True for a file or a package right in the folder: in a virtual environment below it, others find it, too."""
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    return any(Path(path).parent == folder for path in paths) and not module.__name__.startswith("ddpsim_program_")
