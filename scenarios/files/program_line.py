"""Names of scenarios in Python files: FILE.py:FUNCTION, and programs, whose name is their command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from ddpsim.simulator.launching.script import is_program


def split_program_line(name: str) -> list[str]:
    """Return the words of a program's command line; none if the name is no program."""
    try:
        words = shlex.split(name)
    except ValueError:  # an unclosed quotation
        return []
    return words if is_program(words) else []


def quote_for_command_line(name: str) -> str:
    """Return the name as a command line has it: quoted if needed, but a program stays several words."""
    return name if split_program_line(name) else shlex.quote(name)


def python_file_in_name(name: str) -> str:
    """Return the Python file in a name; "" if there is none."""
    words = split_program_line(name)
    if words:
        return "" if words[0] == "-m" else words[0]
    file = name.rpartition(":")[0]
    return file if file.endswith(".py") else ""


def replace_path_in_name(name: str, change: Callable[[str], str]) -> str:
    """Return the name with another path of its Python file; unchanged if it has none."""
    file, words = python_file_in_name(name), split_program_line(name)
    if not file:
        return name
    return shlex.join([change(file), *words[1:]]) if words else f"{change(file)}:{name.rpartition(':')[2]}"
