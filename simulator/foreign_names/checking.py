"""Compares the table of foreign names with the installed Python and libraries.

It imports modules and reads the signatures of functions. It searches the compiled code of modules, without running it,
for names that exist only in functions: local variables, and attributes of objects.
"""

import importlib
import inspect
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, reduce
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ddpsim.simulator.foreign_names.names import ForeignNames, NameUse


class NameMismatch(NamedTuple):
    """A name of torch or Python that is missing on this machine, or differs from what ddpsim needs."""

    name: str
    problem: str
    row: ForeignNames
    """The row of the table, which says what fails without the name."""


def find_mismatches(table: Iterable[ForeignNames]) -> list[NameMismatch]:
    """Return the names of a table that are missing or differ; libraries other than torch may be missing."""
    found = []
    for row in table:
        library = row.owner.partition(".")[0]
        is_installed = library == "torch" or library in sys.modules or find_spec(library) is not None
        if row.use is NameUse.ADDED or not _matches_version(row) or not is_installed:
            continue
        for name in row.names:
            if problem := _describe_problem(row, name):
                found.append(NameMismatch(f"{row.owner}.{name}", problem, row))
    return found


def _matches_version(row: ForeignNames) -> bool:
    since, until = _compare_version(row.since), _compare_version(row.until)
    return (since is None or since[0] >= since[1]) and (until is None or until[0] <= until[1])


def _compare_version(bound: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a library's installed version and the version in a bound such as "torch 2.15"; None without a bound."""
    if not bound:
        return None
    library, version = bound.split()
    installed = platform.python_version() if library == "python" else importlib.import_module(library).__version__
    return _version_numbers(installed), _version_numbers(version)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, each)) or 0) for each in version.split(".")[:2])


def _describe_problem(row: ForeignNames, name: str) -> str:
    """Describe what is wrong with a name on this machine: missing, or another signature; "" if nothing is."""
    if row.use is NameUse.FRAME:
        return _describe_frame_problem(row, name)
    try:
        owner = resolve_name_path(row.owner)
    except (ImportError, AttributeError, OSError) as error:
        return f"{row.owner} is missing ({error})"
    try:
        value = _get_nested_attribute(owner, name)
    except AttributeError:
        return "" if _is_attribute_in_code(owner, name) else f"{name} is missing"
    return _describe_signature_problem(value, row.signature)


def resolve_name_path(path: str) -> Any:
    """Return the module or attribute that a dotted name means. Raises ImportError or AttributeError."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name) or count == 1:
                raise
            continue
        return _get_nested_attribute(module, ".".join(parts[count:]))
    raise ImportError(path)


def _get_nested_attribute(owner: Any, path: str) -> Any:
    return reduce(getattr, filter(None, path.split(".")), owner)


def _describe_signature_problem(value: Any, relied_on: tuple[str, ...]) -> str:
    if not relied_on:
        return ""
    try:
        parameters = inspect.signature(value).parameters
    except (ValueError, TypeError):  # a function in C has no signature
        return ""
    split = relied_on.index("*") if "*" in relied_on else len(relied_on)
    ordered, named = relied_on[:split], relied_on[split + 1 :]
    found = tuple(parameters)
    is_open = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if found[: len(ordered)] == ordered and (is_open or parameters.keys() >= set(named)):
        return ""
    return f"takes ({', '.join(found)}), expected ({', '.join(relied_on)})"


def _describe_frame_problem(row: ForeignNames, name: str) -> str:
    try:
        codes = [code for code in code_objects_of(row.owner) if code.co_name == name]
    except (ImportError, OSError) as error:
        return f"{row.owner} is missing ({error})"
    if not codes:
        return f"{row.owner} has no function {name}"
    fewest = min((_missing_locals(code, row.signature) for code in codes), key=len)
    return f"{name} has no local variable {', '.join(fewest)}" if fewest else ""


def _missing_locals(code: CodeType, expected: tuple[str, ...]) -> list[str]:
    known = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return [each for each in expected if known.isdisjoint(each.split("|"))]


def _is_attribute_in_code(owner: Any, name: str) -> bool:
    """Return whether the code of a class's module, or of a function, mentions an attribute."""
    if isinstance(owner, FunctionType):
        return name in owner.__code__.co_names
    if not isinstance(owner, type):
        return False
    for module in {kind.__module__ for kind in owner.__mro__ if kind is not object}:
        with suppress(ImportError, OSError, AttributeError):  # a frozen module has no file
            if any(name in code.co_names for code in code_objects_of(module)):
                return True
    return False


@cache
def code_objects_of(module: str) -> tuple[CodeType, ...]:
    """Return the code of a module and of all functions in it. Raises ImportError or OSError if it has none."""
    code = SourceFileLoader(module, _source_file_of(module)).get_code(module)
    return tuple(_nested_code_objects(code)) if isinstance(code, CodeType) else ()


def _nested_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested_code_objects(each)


def _source_file_of(module: str) -> str:
    """Return the source file of a module; only the module's outermost package is imported."""
    top, *rest = module.split(".")
    package: ModuleType = importlib.import_module(top)
    if not rest:
        return str(package.__file__)
    folder = os.path.join(package.__path__[0], *rest)
    return f"{folder}.py" if os.path.isfile(f"{folder}.py") else os.path.join(folder, "__init__.py")
