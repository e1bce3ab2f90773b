"""Load scenarios from files: TOML files, and Python files with scenarios or with functions that a rank runs."""

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
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.ranks.function import as_rank_function

SUFFIXES = (".py", ".toml")


def load_scenarios(path: Path, find: Find | None = None) -> dict[str, Scenario]:
    """Return the scenarios of a file, in file order, by the name that `ddpsim run` uses. The function `find` returns
    another scenario to which the file refers. Raises UsageError if the file cannot be loaded."""
    if path.suffix == ".toml":
        return {str(path): read_toml(path, find)}
    try:
        found = scenarios_in_module(execute_file(path))
        return {f"{path}:{variable}": scenario for variable, scenario in found.items()}
    finally:
        _remove_program_folders()


def scenarios_in_module(module: ModuleType) -> dict[str, Scenario]:
    """Return the scenarios that a module itself defines, by variable name. Imported scenarios are left out."""
    found: dict[str, Scenario] = {}
    for variable, value in vars(module).items():
        is_known = any(value is each for each in found.values())
        if isinstance(value, Scenario) and _is_defined_in(module, value) and not is_known:
            found[variable] = value
    return found


def load_function(path: Path, function: str) -> Callable[..., Any] | Scenario:
    """Return a function of a Python file, or a scenario made from the function.

    Raises UsageError if there is no such function. Until another file is loaded, it can import from its file's folder.
    """
    module = execute_file(path)
    program = getattr(module, function, None)
    if not callable(program) and not isinstance(program, Scenario):
        functions = [key for key, value in vars(module).items() if _is_defined_in(module, value)]
        advice = suggest_nearest_name(function, functions) or f"its functions are {', '.join(functions) or 'none'}"
        raise UsageError(f"scenario is {f'{path}:{function}'!r}, but {path} has no function {function!r}: {advice}")
    return program if isinstance(program, Scenario) else as_rank_function(program, f"{path}:{function}")


def execute_file(path: Path) -> ModuleType:
    """Return the module in a file, executed like an import: its `if __name__ == "__main__"` part does not run.

    As for a script, the file's folder can be imported from. The folder is last in `sys.path`, where it hides nothing.
    The folder of the previously loaded file is removed, because two files may each have their own `helper.py`.
    """
    name = f"ddpsim_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "importlib has a loader for .py files"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _add_program_folder(str(path.resolve().parent))
    sys.modules[name] = module  # dataclasses and pickle look up a class's module there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(import_problem(path, error)) from error
    return module


def import_problem(path: Path, error: BaseException) -> str:
    """Return one line about an error raised while a file was imported, with its line in that file, and in a file beside
    it if the error arose there."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # `locations` has the line
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
    advice = (
        'expected it to define functions only: put what starts it under `if __name__ == "__main__":`, or run the whole '
        "file as a program, without `:FUNCTION`"
    )
    if isinstance(error, SyntaxError):
        advice = "expected Python: correct that line"
    elif isinstance(error, ImportError):
        advice = f"expected to find it: install it for {sys.executable}, or set PYTHONPATH to the folder that has it"
    beside = f" (at {path.parent / last.relative_to(folder)}:{last_line})" if is_beside else ""
    return f"{location} raised {message}{beside} while it was imported, {advice}"


def _is_defined_in(module: ModuleType, value: object) -> bool:
    program = value.program if isinstance(value, Scenario) else value
    return callable(program) and getattr(program, "__module__", None) == module.__name__


class _ProgramFolder(str):
    """An entry of `sys.path`: the folder of the file that was loaded last."""

    __slots__ = ("imported_before",)
    imported_before: frozenset[str]


def _add_program_folder(folder: str) -> None:
    if any(isinstance(entry, _ProgramFolder) and entry == folder for entry in sys.path):
        return
    _remove_program_folders()
    if folder not in sys.path:
        entry = _ProgramFolder(folder)
        entry.imported_before = frozenset(sys.modules)
        sys.path.append(entry)


def _remove_program_folders() -> None:
    """Forget modules imported from the folder of the file loaded last, and remove that folder from `sys.path`."""
    for entry in [entry for entry in sys.path if isinstance(entry, _ProgramFolder)]:
        sys.path[:] = [other for other in sys.path if other is not entry]
        tops = {name.partition(".")[0] for name in sys.modules} - entry.imported_before
        beside = {top for top in tops if top in sys.modules and _is_directly_in_folder(sys.modules[top], Path(entry))}
        for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
            del sys.modules[name]
    importlib.invalidate_caches()


def _is_directly_in_folder(module: ModuleType, folder: Path) -> bool:
    """Return True for a file or package directly in the folder. Files further below may belong to an environment."""
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    return any(Path(path).parent == folder for path in paths) and not module.__name__.startswith("ddpsim_program_")
