"""Scenarios in files: Python files with scenarios or functions of a rank, and TOML files of declared steps."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from scenarios.model import Scenario
from scenarios.names import nearest
from scenarios.toml_file import read_toml
from simulator import UsageError

SUFFIXES = (".py", ".toml")


def scenarios_in(path: Path) -> tuple[Scenario, ...]:
    """The scenarios of a file, in the order in which they stand there. Raises UsageError if it cannot be loaded."""
    if path.suffix == ".toml":
        return (read_toml(path),)
    return scenarios_of(execute(path))


def scenarios_of(module: ModuleType) -> tuple[Scenario, ...]:
    """The scenarios that a module has made itself, not those it has imported."""
    made = [value for value in vars(module).values() if isinstance(value, Scenario)]
    return tuple(each for each in made if _is_defined_in(module, each))


def program_in(path: Path, function: str) -> Callable[..., Any] | Scenario:
    """A function of a Python file, or a scenario that was made of one. Raises UsageError if there is none."""
    module = execute(path)
    program = getattr(module, function, None)
    if not callable(program) and not isinstance(program, Scenario):
        functions = [key for key, value in vars(module).items() if _is_defined_in(module, value)]
        advice = nearest(function, functions) or f"its functions are {', '.join(functions) or 'none'}"
        raise UsageError(f"scenario is {f'{path}:{function}'!r}, but {path} has no function {function!r}: {advice}")
    found: Callable[..., Any] | Scenario = program
    return found


def execute(path: Path) -> ModuleType:
    """The module in a file, executed as an import would: its `if __name__ == "__main__"` part is left out.

    As for a script, the file's folder can be imported from; it goes to the end of `sys.path`, where it hides nothing.
    """
    name = f"ddpsim_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # where dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(import_problem(path, error)) from error
    return module


def import_problem(path: Path, error: BaseException) -> str:
    """One line about what a file raised while it was imported, with the line of the file."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return (
        f"{path}{f':{line}' if line else ''} raised {message} while it was imported, expected it to define functions "
        'only: put what starts it under `if __name__ == "__main__":`'
    )


def _is_defined_in(module: ModuleType, value: object) -> bool:
    program = value.program if isinstance(value, Scenario) else value
    return callable(program) and getattr(program, "__module__", None) == module.__name__
