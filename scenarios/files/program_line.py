"""Parse scenario names that refer to Python files: FILE.py:FUNCTION, or a program's command line, FILE.py ARGUMENTS."""

import shlex
from collections.abc import Callable

from ddpsim.simulator.launching.script import is_program


def split_program_line(name: str) -> list[str]:
    """Return the words of a program's command line; no words if the scenario name is not a command line."""
    try:
        words = shlex.split(name)
    except ValueError:  # an unclosed quotation
        return []
    return words if is_program(words) else []


def quote_for_command_line(name: str) -> str:
    """Return a scenario name as on a command line: quoted if needed, but as several words for a program."""
    return name if split_program_line(name) else shlex.quote(name)


def python_file_in_name(name: str) -> str:
    """Return the path of the Python file that a scenario name contains; "" if the name contains none."""
    words = split_program_line(name)
    if words:
        return "" if words[0] == "-m" else words[0]
    file = name.rpartition(":")[0]
    return file if file.endswith(".py") else ""


def replace_path_in_name(name: str, change: Callable[[str], str]) -> str:
    """Return a scenario name with the path of its Python file replaced; unchanged if it contains no file."""
    file, words = python_file_in_name(name), split_program_line(name)
    if not file:
        return name
    return shlex.join([change(file), *words[1:]]) if words else f"{change(file)}:{name.rpartition(':')[2]}"
