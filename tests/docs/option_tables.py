"""The tables of options in docs/console.md, made from what the commands take. To bring the page up to date:

python -m tests.docs.option_tables
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from ddpsim.scenarios.cli.commands import app
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "console.md"

TABLE = re.compile(r"^(<!-- options of (\w+) -->\n\n)(?:\|.*\n)*", re.MULTILINE)
"""A marker, and the table below it."""


def commands() -> dict[str, Callable[..., Any]]:
    """The commands by name, in the order of `ddpsim --help`."""
    registered = [(command.name, command.callback) for command in app.registered_commands]
    return {name or callback.__name__: callback for name, callback in registered if callback is not None}


def table(command: Callable[..., Any]) -> str:
    """What a command takes, a row each."""
    rows = [f"| `{name}` | {says} | {default} |\n" for name, says, default in _rows(command)]
    return "".join(("| | what it says | without it |\n", "|---|---|---|\n", *rows))


def _rows(command: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.annotation is typer.Context:
            continue
        kind, *marks = get_args(parameter.annotation)
        taken = next(mark for mark in marks if isinstance(mark, (ArgumentInfo, OptionInfo)))
        text, _, told = (taken.help or "").partition("  [default: ")
        default = told.rstrip("]") or _default(parameter.default)
        yield _name(parameter.name, kind, taken), text.replace("|", "\\|"), default


def _name(name: str, kind: object, taken: ArgumentInfo | OptionInfo) -> str:
    if isinstance(taken, ArgumentInfo):
        return taken.metavar or name.upper()
    # Beside Annotated, typer takes the first name of an option for its default.
    names = [each for each in (taken.default, *(taken.param_decls or ())) if isinstance(each, str)]
    value = taken.metavar or (
        "" if kind in (bool, bool | None) else "NAME" if kind in (str, str | None, list[str] | None) else "N"
    )
    return f"{', '.join(sorted(names, key=len)) or '--' + name.replace('_', '-')} {value}".rstrip()


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "needed"
    return "" if value is None or value is False else "yes" if value is True else f"{value}"


def brought_up_to_date(page: str) -> str:
    """The page with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + table(commands()[found[2]]), page)


if __name__ == "__main__":
    PAGE.write_text(brought_up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
