"""Find a scenario by name: one of the registry, or FILE.py:FUNCTION, a function of the caller's own."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from scenarios.model import Scenario
from scenarios.zoo import registry
from simulator import UsageError


def load(name: str) -> Scenario:
    """The scenario called `name`; `FILE.py:FUNCTION` makes one of a function that takes a rank and is expected to pass.

    Raises UsageError, with the nearest name if there is one.
    """
    if not isinstance(name, str):
        raise UsageError(f"scenario is {name!r}, expected a name: see `ddpsim list`")
    file, _, function = name.rpartition(":")
    if file.endswith(".py") or name.endswith(".py"):
        return _from_file(name, file, function)
    if name not in registry:
        advice = _nearest(name, registry) or "see `ddpsim list`"
        raise UsageError(f"scenario is {name!r}, expected a name in `ddpsim list` or FILE.py:FUNCTION: {advice}")
    return registry[name]


def _from_file(name: str, file: str, function: str) -> Scenario:
    if not file:
        raise UsageError(f"scenario is {name!r}, expected FILE.py:FUNCTION: say which function takes the rank")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"scenario is {name!r}, but there is no file {file!r}: correct the path")
    module = _execute(path)
    program = getattr(module, function, None)
    if not callable(program):
        functions = [key for key, value in vars(module).items() if _is_defined_in(module, value)]
        advice = _nearest(function, functions) or f"its functions are {', '.join(functions) or 'none'}"
        raise UsageError(f"scenario is {name!r}, but {file} has no function {function!r}: {advice}")
    return Scenario(name, (program.__doc__ or "").strip().partition("\n")[0], program, min_world_size=1)


def _execute(path: Path) -> ModuleType:
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
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{path} raised {message} while it was imported, expected it to define functions only: put what starts it "
            'under `if __name__ == "__main__":`'
        ) from error
    return module


def _is_defined_in(module: ModuleType, value: object) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""
